"""The common services of schedules, the rights with which a schedule runs, and the start of a run.

The path of a target is a template with three fields and no format specifications. Any other text in braces is refused
when the schedule is stored, so that no run fails because of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from reshard.formats.delta.index_values import version_text
from reshard.storage.location import Location
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller, Tokens
from reshard_server.db.clock import now_of
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import New
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.runs import forget_old
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import INVALID, NOT_FOUND, ProblemError
from reshard_server.jobs.check_request import check_job
from reshard_server.observability.logs import audit
from reshard_server.schemas.conversion import (
    DeltaForm,
    JobRequest,
    OneDelta,
    OneTarget,
    SeveralTargets,
    TargetRequest,
    targets_of,
)
from reshard_server.schemas.job_options import PartOptions
from reshard_server.schemas.schedule import Clock, PublishedVersions, ScheduleBody
from reshard_server.settings import Settings


class UnfitError(Exception):
    """A schedule whose token lost the rights that it needs; the text names them."""


@dataclass(frozen=True)
class Scheduling:
    """The services that all parts of the schedules share.

    Attributes:
        executor: id of this process.
        wake_queue: makes the queue look for queued conversions at once.
        stopping: set when this server ends.
    """

    settings: Settings
    database: sa.Engine
    tokens: Tokens
    roots: Roots
    executor: str
    wake_queue: Callable[[], None]
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def heard_after(self) -> sa.ColumnElement[float]:
        """Processes whose last heartbeat is older than this are dead."""
        return now_of(self.database) - self.settings.lease_seconds

    def caller(self, stored: StoredSchedule) -> Caller:
        """The token that made the schedule, with its present rights. Raises UnfitError if it lost them."""
        found = self.tokens.named(stored.token)
        if found is None:
            raise UnfitError(
                f"the token {stored.token!r}, which made this schedule, no longer exists or has expired; make a token of this "
                "name again, or delete the schedule and store it with another token"
            )
        if "convert" not in found.scopes:
            raise UnfitError(
                f"the token {stored.token!r}, which made this schedule, lacks the scope 'convert' now; give it back, or "
                "delete the schedule and store it with another token"
            )
        return found

    def watched(self, stored: StoredSchedule) -> Location:
        """The real place that the schedule reads. Raises UnfitError if its token may no longer read it."""
        caller = self.caller(stored)
        try:
            return self.roots.readable(caller, source_of(stored.body))
        except ProblemError as problem:
            raise _unfit(stored, problem) from problem

    def forget_old_runs(self, stored: StoredSchedule, there: Collection[int] = ()) -> None:
        """Forgets runs beyond those to keep, except of the steps in ``there``, whose folders exist."""
        if self.settings.keep_runs:
            forget_old(self.database, stored.name, self.settings.keep_runs, there)

    def prepared(self, stored: StoredSchedule, occasion: Occasion) -> Run:
        """A run on an occasion. Raises UnfitError if the token lost the rights for it, ProblemError if it is impossible."""
        request = request_of(stored.name, stored.body, occasion)
        try:
            check_job(self, self.caller(stored), request)
        except ProblemError as problem:
            if problem.kind is NOT_FOUND:
                raise _unfit(stored, problem) from problem
            raise
        return Run(stored, occasion, request)

    def queue(self, connection: sa.Connection, run: Run) -> str:
        """Queues the run's conversion and records its expected outputs; returns its id. Raises QueueFullError."""
        stored, most = run.stored, self.settings.queued_per_token
        if conversions.count_queued(connection, stored.token) >= most:
            raise QueueFullError(
                f"{most} conversions of the token {stored.token!r} wait already, the most that may wait"
            )
        [made] = conversions.insert(connection, [New(stored.token, run.request, stored.name)])
        at, step = run.occasion.at, run.occasion.step
        outputs = [
            Output.expected(stored.name, requested.target, target.target, step, at, made.id)
            for requested, target in zip(stored.body.targets, targets_of(run.request), strict=True)
        ]
        schedule_outputs.expect(connection, outputs)
        return made.id

    def started(self, run: Run, conversion: str) -> None:
        """Writes a queued conversion to the audit log, and wakes the queue."""
        audit(
            "scheduled",
            caller=run.stored.token,
            resource=f"/v1/schedules/{run.stored.name}",
            conversion=conversion,
            targets=[requested.target for requested in targets_of(run.request)],
        )
        self.wake_queue()


def source_of(body: ScheduleBody) -> str:
    """The path that the schedule reads or watches."""
    return body.when.source if isinstance(body.when, Clock) else body.when.directory


def _unfit(stored: StoredSchedule, problem: ProblemError) -> UnfitError:
    return UnfitError(f"the token {stored.token!r}, which made this schedule: {problem.detail}")


OF_STEPS = ("step", "time", "name")
OF_CLOCK = ("time", "name")
OF_VERSIONS = ("version", "name")

_FIELD = re.compile(r"\{(\w+)\}", re.ASCII)


def check_template(template: str, known: tuple[str, ...], field: str) -> None:
    """Raises ProblemError for an unknown field, or a brace that belongs to no field."""
    wrong = [name for name in _FIELD.findall(template) if name not in known]
    rest = _FIELD.sub("", template)
    if wrong or "{" in rest or "}" in rest:
        found = f"{{{wrong[0]}}}" if wrong else "a brace that belongs to no field"
        fields = ", ".join(f"{{{name}}}" for name in known)
        raise ProblemError(
            INVALID,
            f"the target {template[:200]!r} has {found}; the known fields are {fields}",
            field,
            f"use only {fields}",
        )


def fields_of(template: str) -> frozenset[str]:
    """The fields that a template has."""
    return frozenset(_FIELD.findall(template))


def is_one_by_one(body: ScheduleBody) -> bool:
    """True if a step waits for the conversion before it: a version stands on the last one, or a target does not name the step."""
    return body.delta is not None or any(
        "step" not in fields_of(requested.target) for requested in body.targets
    )


@dataclass(frozen=True, slots=True)
class Occasion:
    """The subject of one run.

    Attributes:
        at: the time in the targets' names.
        again: an earlier run may have left unfinished work. It is thrown away, since that run read the step from
            other hard links.
        version: of the weights; None if the schedule publishes none.
        old: the checkpoint that a delta is compared with; None for a full version.
        detail: its text in the history.
    """

    source: str
    at: float
    step: int | None = None
    again: bool = False
    version: int | None = None
    old: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that may start, with the request of its conversion."""

    stored: StoredSchedule
    occasion: Occasion
    request: JobRequest


class QueueFullError(Exception):
    """The schedule's token has the most waiting conversions that it may have."""


def request_of(name: str, body: ScheduleBody, occasion: Occasion) -> JobRequest:
    """The conversion's request; not checked."""
    time = datetime.fromtimestamp(occasion.at, UTC).strftime("%Y%m%dT%H%M%SZ")
    values, labels = {"name": name, "time": time}, {"schedule": name}
    if occasion.step is not None:
        values["step"] = labels["step"] = str(occasion.step)
    again = occasion.again
    if occasion.version is not None:
        values["version"] = version_text(occasion.version)
        again = True  # a run that failed may have left another step there
    targets = tuple(
        requested.model_copy(
            update={
                # Fields within the values stay as they are.
                "target": _FIELD.sub(lambda match: values[match[1]], requested.target),
                "restart": requested.restart or again,
            }
        )
        for requested in body.targets
    )
    shared = {
        "source": occasion.source,
        "max_memory": body.max_memory,
        "workers": body.workers,
        "priority": body.priority,
        "labels": labels,
        "notify": body.notify,
        **body.model_dump(include=set(PartOptions.model_fields)),
    }
    if body.delta is not None and occasion.old is not None:
        return _delta(body.delta, targets[0], occasion.old, shared)
    if len(targets) == 1:
        return OneTarget.model_validate({**shared, **targets[0].model_dump()})
    return SeveralTargets.model_validate({**shared, "targets": targets})


def _delta(
    section: PublishedVersions, target: TargetRequest, old: str, shared: dict[str, Any]
) -> OneDelta:
    new = {"new" if name == "source" else name: value for name, value in shared.items()}
    rules = {
        name: value
        for name, value in target.model_dump().items()
        if name in OneDelta.model_fields and name not in shared
    }
    form = section.model_dump(include=set(DeltaForm.model_fields))
    return OneDelta.model_validate({**rules, **form, **new, "old": old, "or_full": True})
