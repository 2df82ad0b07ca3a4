"""One conversion or delta over HTTP, from the request to its end.

``submit`` runs in the process that takes the request, ``run_conversion`` in the one that claims the conversion. Only the
conversion's row in the database passes from one to the other.

``submit``:

1. ``drain.refuse_new``: a server that ends takes no new work.
2. ``choose_step``: a step or an item becomes one plain path.
3. ``check_job``: paths, layouts, arguments and limits; the checkpoint is not read.
4. ``BatchRecorder.create``: writes a queued row. The table of rows is the queue.
5. ``JobQueue.wake``: a server claims the row (``jobs/queue.py``, ``db/conversions/claims.py``).

``run_conversion``:

6. ``read_row``: the request as it was recorded.
7. ``make_child_request``: real paths, checked again; the contents of layouts; the hard links of a watched step.
8. ``OwnClaim.begin_attempt``: counts the attempt, only while the claim stands.
9. ``attempt``: runs the child; passes on progress, renews its lease, stops it, lets it publish.
10. ``judge``: writes the end to the row, or waits and goes back to 6.

A conversion in parts is claimed twice, and each of its parts once: ``work_of`` says what a claim is for. First a child plans and
records the parts' request at the targets; ``judge`` then queues the parts (``db/conversions/parts.py``). When all have succeeded, a
child commits and publishes.

The change of the row wakes every stream of events that watches the conversion (``db/conversions/conversions.py``).

A problem that the library names would come again, so it ends the conversion. A process that dies without a message
(out of memory, killed by hand) is started again and resumes; the pause before it doubles each time.

The child's request has real paths, the contents of layouts and maps, and limits within the server's settings. It is made anew for each
attempt, so that every path is checked right before it is used. A source whose files are hard-linked for the conversion (a schedule does
that) is read from the links.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard.errors import ReshardError
from reshard.formats.registry import is_there
from reshard.geometry.sizes import parse_bytes
from reshard.storage.location import locate
from reshard_server.auth.limits import Drain
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.db.conversions import claims, conversions, part_states
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.created import BatchRecorder, Submission
from reshard_server.db.conversions.executors import slots_for
from reshard_server.db.conversions.hard_links import linked_source
from reshard_server.db.conversions.parts import Split
from reshard_server.db.documents import UnreadableError, unknown_members
from reshard_server.db.stored.kinds import KINDS, content_then
from reshard_server.errors.problems import CONFLICT, INTERNAL, WORKER_DIED, ProblemError, problem_of
from reshard_server.jobs.attempt import (
    Begun,
    Converted,
    Died,
    Interrupted,
    Order,
    Outcome,
    OwnClaim,
    Refused,
    TimedOut,
    TimeLimits,
    attempt,
)
from reshard_server.jobs.check_request import Checking, check_job, choose_step
from reshard_server.jobs.on_kubernetes import do_parts, forget_job
from reshard_server.schemas.conversion import (
    Conversion,
    DeltaForm,
    JobRequest,
    OneDelta,
    ProgressState,
    SeveralTargets,
    TargetRequest,
    library_options,
    targets_of,
)
from reshard_server.settings import MIB, KubernetesSettings, Settings
from reshard_server.worker.children import Children
from reshard_server.worker.wording import Wording

LOG = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
BUSY_PAUSE_SECONDS = 1.0


class Waking(Protocol):
    """The queue, as far as ``submit`` needs it; ``jobs.queue`` itself imports this module."""

    def wake(self) -> None: ...


class Submitting(Checking, Protocol):
    """The services that ``submit`` needs."""

    @property
    def drain(self) -> Drain: ...

    @property
    def checkers(self) -> CapacityLimiter: ...

    @property
    def finders(self) -> CapacityLimiter: ...

    @property
    def recorder(self) -> BatchRecorder: ...

    @property
    def queue(self) -> Waking: ...


async def submit(
    serving: Submitting, caller: Caller, request: JobRequest, key: str | None
) -> Conversion:
    """Checks and records a conversion, without reading the checkpoint.

    Args:
        key: the client's Idempotency-Key; the same key and request return the same conversion.

    Raises ProblemError for a request that cannot be carried out.
    """
    serving.drain.refuse_new()
    resolved = await choose_step(serving.finders, serving.roots, caller, request)
    await run_sync(check_job, serving, caller, resolved, limiter=serving.checkers)
    submission = Submission(caller.name, resolved, key, sent=request)
    conversion, is_new = await serving.recorder.create(submission)
    if is_new:
        serving.queue.wake()
    return conversion


def run_conversion(settings: Settings, roots: Roots, claim: OwnClaim, children: Children) -> bool:
    """Carries out a claimed conversion; its row then has the outcome.

    Returns False if the conversion is queued again for a server of another version.
    """
    try:
        order = _Attempts(settings, roots, claim, children).run()
    except UnreadableError as unreadable:
        LOG.warning("left to a server of another version: %s", unreadable.detail)
        claim.hand_back()
        return False
    except ProblemError as problem:
        _fail(claim, problem)
    except ReshardError as error:
        _fail(claim, problem_of(error))
    except sa.exc.SQLAlchemyError as error:
        # The row still names this claim; the conversion is queued again when the database is back.
        LOG.warning("cannot continue: %s", error)
    except Exception:
        LOG.exception("unexpected")
        _fail(
            claim,
            ProblemError(
                INTERNAL, "the server met an error that is its own; its log has the conversion's id"
            ),
        )
    else:
        _obey(claim, order)
    return True


@dataclass
class _Attempts:
    """The attempts of one claim.

    Attributes:
        deaths: the number of child processes that died, without those of servers that died: the conversion did not kill them.
        last_progress: the last progress of any attempt.
        waits_for_target: True if the last attempt found the target locked by an earlier attempt's child.
        parts_done: True once an engine has done all parts, which are to be committed.
    """

    settings: Settings
    roots: Roots
    claim: OwnClaim
    children: Children
    deaths: int = 0
    waits_for_target: bool = False
    last_progress: ProgressState | None = None
    parts_done: bool = False

    def run(self) -> Order:
        """Attempts, until the row has its end ("continue") or there is an order to stop."""
        limits: TimeLimits | None = None
        while (conversion := self.read_row()) is not None:
            limits = limits or TimeLimits(self.settings, conversion.request)
            outcome = self.attempt_once(conversion, limits)
            if isinstance(outcome, Interrupted):
                return outcome.order
            pause = self.judge(conversion, outcome)
            if pause is None:
                return "continue"
            if (order := self.claim.pause(pause)) != "continue":
                return order
        return "lost"

    def read_row(self) -> Conversion | None:
        """The conversion; None if its record was deleted. Raises UnreadableError for another version's."""
        conversion = conversions.get(
            self.claim.db, self.claim.claim.whole, with_result=False, whole=False
        )
        if conversion is not None and (unknown := unknown_members(conversion.request)):
            raise UnreadableError(CONFLICT, f"this version does not know {', '.join(unknown)}")
        return conversion

    def attempt_once(self, conversion: Conversion, limits: TimeLimits) -> Outcome:
        """Runs one child process, unless the claim is lost or cancelled before it starts."""
        claim = self.claim
        has_moved = claims.has_moved(claim.db, claim.claim)
        document = make_child_request(
            claim.db,
            self.settings,
            self.roots,
            conversion,
            begun=has_moved,
            claim=claim.claim,
            parts_done=self.parts_done,
        )
        if not self.waits_for_target and not claim.begin_attempt():
            state = claims.state_of(claim.db, claim.claim)
            return Interrupted("cancel" if state == "cancelling" else "lost")
        LOG.info("an attempt begins")
        outcome = attempt(document, claim, limits, self.children)
        cluster = cluster_of(self.settings, conversion.request)
        if cluster is None:
            return outcome
        if isinstance(outcome, Begun):
            target = document["targets"][0]["target"]
            ended = (
                None if outcome.already_done else do_parts(cluster, claim, target, outcome, limits)
            )
            if ended is not None:
                return ended
            self.parts_done = True
            return self.attempt_once(conversion, limits)
        if not isinstance(outcome, Interrupted | Died):
            forget_job(cluster, conversion.id)
        return outcome

    def judge(
        self, conversion: Conversion, outcome: Converted | Begun | Refused | Died | TimedOut
    ) -> float | None:
        """Writes the end to the row, queues the parts, or returns the seconds to wait before the next attempt."""
        held = self.claim.claim
        if isinstance(outcome, Begun):
            return self._split(conversion, outcome)
        links = linked_source(self.claim.db, conversion.id)
        wording = Wording.of(self.settings.roots, conversion.request, links)
        if isinstance(outcome, Converted):
            reports = wording.reports(outcome.reports) if held.part is None else None
            read_bytes = outcome.read_bytes
            if held.commits and read_bytes is not None:
                read_bytes += part_states.read_bytes(self.claim.db, conversion.id)
            self.claim.finish("succeeded", result=reports, read_bytes=read_bytes)
            return None
        if isinstance(outcome, TimedOut):
            _fail(self.claim, outcome.problem)
            return None
        if isinstance(outcome, Died):
            return self._after_death(outcome)
        # A target whose parts were begun is held by a child of this conversion, perhaps of a host that was taken for dead.
        is_ours = self.claim.attempt > 1 or held.parts is not None
        if outcome.busy and (self.waits_for_target or is_ours):
            self.waits_for_target = True
            LOG.info("waiting for the target, which an earlier attempt's process has locked")
            return BUSY_PAUSE_SECONDS
        self.claim.finish("failed", error=wording.problem(outcome.problem))
        return None

    def _split(self, conversion: Conversion, begun: Begun) -> float | None:
        """Queues the parts; the commit is then claimed as soon as none is left."""
        claim, (budget, workers) = (
            self.claim,
            limits_of(self.settings, conversion.request, self.claim.claim),
        )
        parts = 0 if begun.already_done else begun.parts
        found = Split(parts, begun.total_bytes, begun.anew, budget, workers)
        if begun.anew:
            LOG.warning("what was begun could not be resumed; every part begins anew")
        if not claim.split(found):
            state = claims.state_of(claim.db, claim.claim)
            if state == "cancelling":
                claim.finish("cancelled")
        return None

    def _after_death(self, died: Died) -> float | None:
        self.waits_for_target = False
        self.deaths += 1
        self.last_progress = died.progress or self.last_progress
        if self.deaths >= self.settings.attempts:
            _fail(self.claim, _gave_up(died.how, self.last_progress, self.deaths))
            return None
        return min(FIRST_PAUSE_SECONDS * 2.0 ** (self.deaths - 1), LONGEST_PAUSE_SECONDS)


def _fail(claim: OwnClaim, problem: ProblemError) -> None:
    claim.finish("failed", error=problem.document())


def _obey(claim: OwnClaim, order: Order) -> None:
    """Cancels or releases the conversion if an order stopped it."""
    if order == "continue":
        return
    LOG.info("stopped: %s", order)
    if order == "cancel":
        claim.finish("cancelled")
    elif order == "drain":
        claim.hand_back()


def _gave_up(how: str, at: ProgressState | None, attempts: int) -> ProblemError:
    extra: dict[str, Any] = {"attempts": attempts}
    if at is not None:
        extra["progress"] = at.model_dump(mode="json")
    return ProblemError(
        WORKER_DIED,
        f"the process of the conversion {how} in attempt {attempts} of {attempts}, {_where(at)}; retry the "
        "conversion to resume it, with a smaller max_memory if the machine ran out of memory",
        remedy="retry the conversion to resume it",
        extra=extra,
    )


def _where(at: ProgressState | None) -> str:
    if at is None:
        return "before anything was moved"
    return f"after {at.moved_bytes} of {at.total_bytes} bytes, at the tensor {at.tensor!r}"


BESIDE_BUDGET_BYTES = 2048 * MIB
BESIDE_THREAD_BYTES = 64 * MIB
"""Writable address space that the kernel allows a child besides its memory budget.

The library keeps the budget; this limit only ends a child that has gone wrong. Measured: 60 to 870 MiB, most of it
reserved by threads (stacks, heaps, codecs) and never touched.
"""


Work = Literal["convert", "begin", "join", "commit"]
"""convert: all in one child. begin: the parts are planned and queued. join: one part. commit: all parts are published."""


def work_of(claim: Claim | None, request: JobRequest, *, parts_done: bool = False) -> Work:
    """The work of a child under a claim; with Ray one child schedules the parts. ``parts_done``: an engine has done all parts."""
    if claim is not None and claim.part is not None:
        return "join"
    if parts_done or (claim is not None and claim.commits):
        return "commit"
    return "begin" if request.parts is not None and request.engine != "ray" else "convert"


def cluster_of(settings: Settings, request: JobRequest) -> KubernetesSettings | None:
    """The cluster that does the parts of a conversion; None if none does."""
    is_asked = request.parts is not None and request.engine == "kubernetes"
    return settings.engines.kubernetes if is_asked and settings.engines is not None else None


def limits_of(settings: Settings, request: JobRequest, claim: Claim | None) -> tuple[int, int]:
    """The bytes of memory and the workers of a child: those of the split for a part, a commit and another split."""
    if claim is not None and claim.max_memory is not None and claim.workers is not None:
        return claim.max_memory, claim.workers
    budget = settings.max_memory
    if request.max_memory is not None:
        budget = min(parse_bytes(request.max_memory), budget)
    return budget, min(request.workers or settings.workers, settings.workers)


def make_child_request(
    db: sa.Engine,
    settings: Settings,
    roots: Roots,
    conversion: Conversion,
    *,
    begun: bool,
    claim: Claim | None = None,
    parts_done: bool = False,
) -> dict[str, Any]:
    """The document that the child reads from stdin.

    Args:
        begun: True if an attempt already moved data; then ``restart`` throws nothing away.
        claim: says which part it is, if any, and its limits.
        parts_done: as of ``work_of``.

    Raises ProblemError if a path may no longer be used, LayoutError if a layout or a map no longer exists.
    """
    request = conversion.request
    links = linked_source(db, conversion.id)
    is_linked = links is not None and is_there(locate(links))
    source = str(links if is_linked else roots.recheck(request.source))
    budget, workers = limits_of(settings, request, claim)
    as_of = conversion.created_at.timestamp()
    targets = [_target(db, roots, each, as_of, begun) for each in targets_of(request)]
    if isinstance(request, OneDelta):
        names = DeltaForm.model_fields.keys() | {"receiver", "base_version", "or_full"}
        form = request.model_dump(include=set(names))
        work: dict[str, Any] = {"delta": {"old": str(roots.recheck(request.old)), **form}}
    else:
        deltas = getattr(request, "deltas", ())
        work = {"deltas": [str(roots.recheck(each)) for each in deltas]}
        work["computed"] = request.computed(roots.recheck)
    if (asked := work_of(claim, request, parts_done=parts_done)) == "begin":
        number = conversion.request.parts if claim is None or not claim.parts else claim.parts
        hosts = max(1, slots_for(db, budget, request.host_labels))
        work["begin"] = {"hosts": hosts} if number == "auto" else {"parts": number}
    elif request.parts is not None and request.engine == "ray" and settings.engines is not None:
        parts = None if request.parts == "auto" else request.parts
        ray = settings.engines.ray
        work["ray"] = {"address": ray.address if ray else "auto", "parts": parts}
    elif claim is not None and asked != "convert":
        work[asked] = f"{claim.part}/{claim.parts}" if asked == "join" else True
    return {
        **work,
        "source": source,
        "unlisted": request.unlisted,
        "targets": targets,
        "several": isinstance(request, SeveralTargets),
        "max_memory": budget,
        "workers": workers,
        "max_growth": settings.max_growth,
        "begun": begun,
        "data_bytes": data_bytes(budget, workers),
    }


def data_bytes(budget: int, workers: int) -> int:
    """The address space that the kernel allows a child with this memory budget."""
    return budget + BESIDE_BUDGET_BYTES + BESIDE_THREAD_BYTES * (workers + (os.cpu_count() or 1))


def _target(
    db: sa.Engine, roots: Roots, requested: TargetRequest, as_of: float, begun: bool
) -> dict[str, Any]:
    document = requested.model_dump(mode="json")
    document["target"] = str(roots.recheck(requested.target, target=True))
    document["restart"] = requested.restart and not begun
    if requested.config is not None:
        document["config"] = str(roots.recheck(requested.config))
    for kind in KINDS:  # the library would take a name for a path
        document[kind.noun] = content_then(db, kind, document[kind.noun], as_of)
    return library_options(document)
