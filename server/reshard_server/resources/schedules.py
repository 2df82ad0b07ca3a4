"""Schedules for routes and pages: found, listed, stored, paused, resumed, run, deleted."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Path

from reshard_server.auth.tokens import Caller
from reshard_server.db.clock import clock_of
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import CONFLICT, PRECONDITION, ProblemError
from reshard_server.observability.logs import ABOUT
from reshard_server.resources.resource import Resource, listed_token
from reshard_server.schedules.check_schedule import check_schedule, first_look
from reshard_server.schedules.loop import run_now
from reshard_server.schedules.scheduling import UnfitError
from reshard_server.schemas.schedule import Schedule, ScheduleBody, SchedulePage, ScheduleRun
from reshard_server.services import Services

NAME_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$"

SCHEDULES: Resource[StoredSchedule] = Resource(
    "schedule",
    read=schedules.get,
    owner=lambda schedule: schedule.token,
    verbs=(":pause", ":resume", ":run"),
    pattern=NAME_PATTERN,
)

ScheduleName = Annotated[
    str,
    Path(
        description="Name of a schedule.",
        max_length=128,
        json_schema_extra={"pattern": NAME_PATTERN},
        examples=["serving"],
    ),
]


class Expected(NamedTuple):
    """The states in which a request expects a schedule: ETags, or ``*``."""

    match: str | None = None
    none_match: str | None = None

    @property
    def any(self) -> bool:
        """True for a request without such headers: no change that the service makes meanwhile may refuse it."""
        return self.match is None and self.none_match is None

    def check(self, found: StoredSchedule | None) -> None:
        """Raises ProblemError if the schedule is in another state; None if there is none."""
        if self.match is not None and (found is None or not _names(self.match, found)):
            raise changed(found)
        if self.none_match is not None and found is not None and _names(self.none_match, found):
            raise changed(found)


def _names(header: str, found: StoredSchedule) -> bool:
    return bool({"*", found.tag} & {tag.strip() for tag in header.split(",")})


def changed(found: StoredSchedule | None) -> ProblemError:
    """The problem for a schedule in another state."""
    now = "does not exist" if found is None else f"is {found.tag} now"
    return ProblemError(
        PRECONDITION,
        f"the schedule {now}, which the request's If-Match or If-None-Match does not expect; read it again, and send the "
        "change with its ETag",
    )


ANY_STATE = Expected()


def shown(serving: Services, stored: StoredSchedule) -> Schedule:
    """The schedule with its last run."""
    return stored.as_schedule(schedule_runs.last(serving.database, stored.name))


def page(serving: Services, caller: Caller, size: int, token: str | None) -> SchedulePage:
    """The caller's schedules, by name, each with its last run."""
    stored, more = schedules.page(serving.database, listed_token(caller), size, token)
    return SchedulePage(schedules=[shown(serving, one) for one in stored], next_page_token=more)


def put(
    serving: Services, caller: Caller, name: str, body: ScheduleBody, expected: Expected
) -> tuple[StoredSchedule, bool]:
    """Stores or replaces a schedule; returns it, and True if it is new. ProblemError if it may not have this name or body."""
    ABOUT.get().aims_at(*(requested.target for requested in body.targets))
    existing = schedules.get(serving.database, name)
    before = existing if existing is not None and SCHEDULES.may_see(caller, existing) else None
    expected.check(before)
    now = clock_of(serving.database).now()
    owner = caller if before is None else _owner(serving, caller, before)
    check_schedule(serving.scheduling, owner, name, body, now)
    if existing is not None and before is None:
        raise _not_free(name)
    what = (body, first_look(body, now), serving.settings)
    if before is None:
        stored = schedules.create(serving.database, name, caller.name, *what)
    else:
        stored = schedules.replace(serving.database, before, *what, unchanged=not expected.any)
    if stored is None:
        existing = schedules.get(serving.database, name)
        hidden = existing is not None and not SCHEDULES.may_see(caller, existing)
        raise _not_free(name) if hidden else changed(existing)
    return stored, before is None


def _owner(serving: Services, caller: Caller, before: StoredSchedule) -> Caller:
    """The token with whose rights the schedule runs, also after an admin replaced it. ProblemError if it lost them."""
    if caller.name == before.token:
        return caller
    try:
        return serving.scheduling.caller(before)
    except UnfitError as unfit:
        raise ProblemError(CONFLICT, str(unfit)) from unfit


def _not_free(name: str) -> ProblemError:
    """The problem for a name of another token's schedule; it hides the reason."""
    return ProblemError(CONFLICT, f"the name {name!r} cannot be used; choose another name")


def pause(serving: Services, found: StoredSchedule) -> StoredSchedule:
    """Pauses a schedule. ProblemError if another request deleted it first."""
    return _set_paused(serving, found, clock_of(serving.database).now(), paused=True)


def resume(serving: Services, found: StoredSchedule) -> StoredSchedule:
    """Resumes a schedule, from its next due time. ProblemError if another request deleted it first."""
    next_at = first_look(found.body, clock_of(serving.database).now())
    return _set_paused(serving, found, next_at, paused=False)


def _set_paused(
    serving: Services, found: StoredSchedule, next_at: float, *, paused: bool
) -> StoredSchedule:
    db = serving.database
    stored = schedules.set_paused(db, found, next_at, paused=paused, unchanged=False)
    if stored is None:
        raise SCHEDULES.gone(found.name)
    return stored


def run(serving: Services, found: StoredSchedule, step: int | None) -> ScheduleRun:
    """Runs a schedule now: a step, or the newest. ProblemError if it cannot run."""
    serving.drain.refuse_new()
    made = run_now(serving.scheduling, found, step, clock_of(serving.database).now())
    if made.conversion is not None:
        ABOUT.get().found(made.conversion)
    return made


def delete(serving: Services, found: StoredSchedule, expected: Expected) -> None:
    """Deletes a schedule and its history. ProblemError if it is in another state than expected."""
    expected.check(found)
    if not schedules.delete(serving.database, found, unchanged=not expected.any):
        now = schedules.get(serving.database, found.name)
        # Another schedule of this name may be of another token, so its state is not told.
        same = now is not None and now.created_at == found.created_at
        raise changed(now) if same else SCHEDULES.gone(found.name)
