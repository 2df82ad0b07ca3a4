"""The story of a conversion whose parts an executor schedules: records the request, submits the parts, watches them, commits.

The executor may be any of ``concurrent.futures``: threads, processes, Dask, Ray (``executors.ray``). It carries nothing but the place of the
request and the name of a part. Its workers need the same file system or bucket, and the same version of this program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.convert import (
    find_finished,
    note_source,
    open_and_plan,
    report_finished,
    to_carry_out,
)
from reshard.conversion.make_plan import JointPlan, TargetPlan, local_paths, useful_parts
from reshard.conversion.open_target import check_space, lock_whole
from reshard.conversion.parts.commit import commit_planned, remove_request
from reshard.conversion.parts.part import Options, do_recorded_part
from reshard.conversion.parts.request import claim_parts, parse_request, refuse_more, request_of
from reshard.conversion.parts.watch import LOOK_S, PartsWatch
from reshard.conversion.report import BegunParts, ConversionReport, MultiReport, PartReport
from reshard.conversion.run import Run, features_of_run, start_run
from reshard.engine.executor import executor_errors, submitted
from reshard.engine.progress import Progress
from reshard.errors import ReshardError, ResumeError
from reshard.formats.registry import CheckpointPath
from reshard.storage.host import host_name
from reshard.storage.parts import (
    Part,
    allow_parts,
    parse_part,
    parts_request,
    remove_parts,
    stop_parts,
)

PARTS_A_HOST = 6
"""Parts for each host, unless the caller gives a number: fast hosts take more of them, and the last ones are short."""

PART_BYTES = 64 << 20
"""Parts that move less gain nothing: each plans the whole conversion, which takes longer than moving so many bytes."""

PATIENCE_S = 120.0
"""Seconds that a part waits for another process that does it: a lease of NFS 4 lasts 90 s, that of a bucket 30 s."""

STOP_S = 10.0
"""Seconds until a part that has not ended is cancelled: one at work looks each second, others may wait for a host that never comes."""


class PartWork(Struct, frozen=True):
    """The work of a part, as an executor carries it; called with the name of the part, such as ``"3/16"``.

    Attributes:
        target: one of the targets, beside which the request is recorded.
        max_memory, workers: of each part; executors such as ``RayExecutor`` ask for so much.
    """

    target: str
    state: str | None
    max_memory: int
    workers: int

    def __call__(self, name: str) -> PartReport:
        """Does the part; an error names the part and the host."""
        try:
            part = parse_part(name)
            return do_recorded_part(self.target, part, self.state, patience_s=PATIENCE_S)
        except ReshardError as error:
            error.args = (f"part {name} on host {host_name()!r}: {error}", *error.args[1:])
            raise


def record_parts(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    options: Sequence[Options],
    parts: int | None = None,
    hosts: int = 1,
) -> BegunParts:
    """Plans a conversion and records its request beside the targets, so that any process can do its parts; see ``convert_in_parts``."""
    run, source = _started(chosen, targets, None, None)
    planned = _plan(run)
    names = tuple(target.target for target in targets)
    if planned is None:
        return BegunParts(source, names, 1, 0, already_done=True)
    plan, left = planned
    count = _begin(run, plan, left, options, parts, hosts)
    total = sum(each.plan.decoded_bytes for each in left)
    return BegunParts(source, names, count, total)


def convert_in_parts(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    options: Sequence[Options],
    executor: Executor,
    parts: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts to all targets by parts that the executor schedules; resumes what an interrupted run has done.

    Args:
        options: those of each target, as plain data, by which other hosts know it.
        parts: their number; None for ``PARTS_A_HOST`` for each of the executor's ``hosts`` (1 if it has no such attribute).
    """
    run, source = _started(chosen, targets, progress, before_publish)
    if (planned := _plan(run)) is not None:
        plan, left = planned
        hosts = max(1, int(getattr(executor, "hosts", 1)))
        count = _begin(run, plan, left, options, parts, hosts)
        resumed = _do_parts(run, left, count, executor)
        run.progress.is_copied = True
        commit_planned(run, plan, left, request_of(run, left, count, options))
        for feature in plan.features:
            run.members |= feature.end(run, plan)
        for each, nbytes in zip(left, resumed, strict=True):
            run.reports[each.number] = replace(run.reports[each.number], resumed_bytes=nbytes)
        remove_request(run)
    reports = [
        replace(run.reports[number], source=source, target=target.target)
        for number, target in enumerate(targets)
    ]
    if len(reports) == 1:
        reports = [replace(reports[0], **run.members)]
    return MultiReport(source, tuple(reports), run.read_bytes, run.seconds, **run.members)


def _started(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    progress: Callable[[Progress], None] | None,
    before_publish: Callable[[str], None] | None,
) -> tuple[Run[ConversionReport], str]:
    """A run with local paths, and the source as messages name it."""
    source, named = local_paths(chosen.path, targets)
    return start_run(chosen, named, progress, before_publish=before_publish), source


def _plan(run: Run[ConversionReport]) -> tuple[JointPlan, list[TargetPlan]] | None:
    """The plan that all parts make, and the targets that are not there yet; None if all are."""
    note_source(run)
    find_finished(run, report_finished)
    if not run.is_unfinished:
        return None
    features = features_of_run(run.source, [target.target for target in run.targets])
    plan = open_and_plan(run, report_finished, features, by_hosts=True)
    left = to_carry_out(run, plan)
    return (plan, left) if left else None


def _begin(
    run: Run[Any],
    plan: JointPlan,
    left: Sequence[TargetPlan],
    options: Sequence[Options],
    parts: int | None,
    hosts: int,
) -> int:
    """Records the request; returns the number of parts."""
    if parts is None:
        parts = _recorded_count(left[0])
    if parts is None:
        most = max(1, plan.total.decoded_bytes // PART_BYTES)
        parts = min(PARTS_A_HOST * hosts, most, useful_parts(plan).parts)
    refuse_more(parts, plan)
    for each in filter(lambda one: one.has_leftovers, left):
        _make_way(each)
    check_space(left)
    claim_parts(request_of(run, left, parts, options), left)
    for each in left:
        allow_parts(each.place, each.target.state)
    return parts


def _make_way(planned: TargetPlan) -> None:
    """Removes the leftovers of earlier runs, if that is asked for. ResumeError for an unfinished run without parts: the commit would find it late."""
    place, target = planned.place, planned.target
    has_request = parts_request(place, target.state) is not None
    if has_request and not target.restart:
        return
    with ExitStack() as locks:
        transaction = lock_whole(planned, locks)
        if target.restart:
            remove_parts(place, target.state)
            transaction.abort()
        elif transaction.left_by() is not None:
            raise ResumeError(
                f"an unfinished run without parts has begun {place}; run that again to resume it, or start over (restart)"
            )


def _recorded_count(planned: TargetPlan) -> int | None:
    """The number of parts that an interrupted run chose, when the cluster may have had other hosts."""
    target = planned.target
    data = None if target.restart else parts_request(planned.place, target.state)
    return None if data is None else parse_request(data, str(planned.place)).parts


def _do_parts(
    run: Run[Any], left: Sequence[TargetPlan], count: int, executor: Executor
) -> Sequence[int]:
    """Submits all parts, and waits for them; returns the bytes of each target that earlier runs had moved.

    At an error, or when this is interrupted, the others are asked to end.
    """
    first = left[0].target
    work = PartWork(first.target, first.state, first.max_memory, first.workers)
    ended: SimpleQueue[Future[PartReport]] = SimpleQueue()
    running: dict[Future[PartReport], str] = {}
    places = [(each.place, each.target.state) for each in left]
    moved = sum(tensor.moved_bytes for each in left for tensor in each.plan.tensors)
    units = sum(tensor.unit_count for each in left for tensor in each.plan.tensors)
    watch = PartsWatch(places, moved, units, run.progress.listener)
    try:
        for number in range(1, count + 1):
            name = str(Part(number, count))
            with _engine_errors():
                future = submitted(executor, work, name)
            running[future] = name
            future.add_done_callback(ended.put)
        while running:
            watch.look()
            # Not ``concurrent.futures.wait``, which never returns for a task that its executor cancelled during shutdown.
            with suppress(Empty):
                future = ended.get(timeout=LOOK_S)
                del running[future]
                with _engine_errors():
                    run.read_bytes += future.result().read_bytes
    except BaseException:
        _stop(left, running)
        raise
    return watch.resumed


def _stop(left: Sequence[TargetPlan], running: Mapping[Future[PartReport], str]) -> None:
    """Asks the parts to end, and waits for those that are at work: none writes to a target once this run has ended."""
    for each in left:
        with suppress(ReshardError):
            stop_parts(each.place, each.target.state)
    until = time.monotonic() + STOP_S
    for future in running:
        with suppress(Exception):
            future.exception(max(0.0, until - time.monotonic()))
    # Not at once: Dask calls a part cancelled that is at work, and nothing could wait for it any more.
    for future in running:
        future.cancel()
    for future in running:
        with suppress(Exception):
            future.exception()


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Maps failures of the executor, those of its own kind too, to errors of this project."""
    try:
        with executor_errors():
            yield
    except ReshardError:
        raise
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        if package in ("reshard", "builtins") or package in sys.stdlib_module_names:
            raise
        raise ReshardError(
            f"the executor gave a part up ({type(error).__name__}: {error}); see its own logs, allow less (max_memory, workers), and run again"
        ) from error
