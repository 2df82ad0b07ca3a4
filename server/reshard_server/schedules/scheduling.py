"""The services that all parts of the schedules share, and the rights with which a schedule runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard.storage.location import Location
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller, Tokens
from reshard_server.db.clock import now_of
from reshard_server.db.schedules.forget_runs import forget_old
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.jobs.check_delta import check_job
from reshard_server.observability.audit import audit
from reshard_server.schemas.conversion import JobRequest, targets_of
from reshard_server.schemas.schedule import Clock, ScheduleBody
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

    def started(self, stored: StoredSchedule, request: JobRequest, conversion: str) -> None:
        """Writes a queued conversion to the audit log, and wakes the queue."""
        audit(
            "scheduled",
            caller=stored.token,
            resource=f"/v1/schedules/{stored.name}",
            conversion=conversion,
            targets=[requested.target for requested in targets_of(request)],
        )
        self.wake_queue()

    def check(self, stored: StoredSchedule, request: JobRequest) -> None:
        """Raises UnfitError if the token lost the rights for it, ProblemError if it is impossible."""
        try:
            check_job(self, self.caller(stored), request)
        except ProblemError as problem:
            if problem.kind is NOT_FOUND:
                raise _unfit(stored, problem) from problem
            raise


def source_of(body: ScheduleBody) -> str:
    """The path that the schedule reads or watches."""
    return body.when.source if isinstance(body.when, Clock) else body.when.directory


def _unfit(stored: StoredSchedule, problem: ProblemError) -> UnfitError:
    return UnfitError(f"the token {stored.token!r}, which made this schedule: {problem.detail}")
