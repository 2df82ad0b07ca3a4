"""Schedules: stored, looked at, paused, run now, forgotten."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.api.schedules.examples import (
    BODIES,
    RUN_NOW,
    run_response,
    schedule_response,
)
from reshard_server.api.schedules.get_or_404 import (
    ChangeableSchedule,
    IfMatch,
    IfNoneMatch,
    NewName,
    ReadableSchedule,
    changed,
    check_state,
    may_see,
)
from reshard_server.db.clock import clock_of
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import (
    BAD_LAYOUT,
    BAD_PLAN,
    CONFLICT,
    INVALID,
    PRECONDITION,
    QUOTA,
    STORAGE,
    TOO_MANY,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.observability.logs import ABOUT
from reshard_server.schedules.check_schedule import check_schedule, first_look
from reshard_server.schedules.run_now import run_now
from reshard_server.schemas.base import DEFAULT_PAGE, PageSize
from reshard_server.schemas.schedule import (
    RunNow,
    RunPage,
    Schedule,
    ScheduleBody,
    SchedulePage,
    ScheduleRun,
)
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=MaskedRoute)

PageToken = Annotated[
    str | None, Query(max_length=1024, description="next_page_token of the previous page.")
]


@ROUTER.put(
    "/{name}",
    responses={
        200: schedule_response("It replaced the previous schedule.", "ETag"),
        201: {**schedule_response("It is new.", "ETag", "Location"), "model": Schedule},
        **problems(INVALID, BAD_LAYOUT, BAD_PLAN, CONFLICT, PRECONDITION, QUOTA),
    },
)
def put_schedule(
    name: NewName,
    body: Annotated[ScheduleBody, Body(openapi_examples=BODIES)],
    serving: Serving,
    caller: Converting,
    response: Response,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Schedule:
    """Stores or replaces the schedule with this name; its history is kept.

    It runs with the rights that the storing token has at each run. Everything that can be checked without reading a
    checkpoint is checked now.
    """
    ABOUT.get().aims_at(*(requested.target for requested in body.targets))
    existing = schedules.get(serving.database, name)
    before = existing if existing is not None and may_see(caller, existing) else None
    check_state(before, if_match, if_none_match)
    now = clock_of(serving.database).now()
    check_schedule(serving.scheduling, caller, name, body, now)
    next_at = first_look(body, now)
    if existing is not None and before is None:
        raise _not_free(name)
    if before is None:
        stored = schedules.create(
            serving.database, name, caller.name, body, next_at, serving.settings
        )
        response.status_code = 201
        response.headers["Location"] = f"/v1/schedules/{name}"
    else:
        stored = schedules.replace(
            serving.database, before, caller.name, body, next_at, serving.settings
        )
    if stored is None:
        existing = schedules.get(serving.database, name)
        raise _not_free(name) if existing and not may_see(caller, existing) else changed(existing)
    return _answer(serving, stored, response)


def _not_free(name: str) -> ProblemError:
    """The problem for a name of another token's schedule; it does not say why."""
    return ProblemError(
        CONFLICT,
        f"the name {name!r} cannot be used; choose another name",
        remedy="choose another name",
    )


@ROUTER.get("")
def list_schedules(
    serving: Serving,
    caller: Reading,
    page_size: Annotated[PageSize, Query()] = DEFAULT_PAGE,
    page_token: PageToken = None,
) -> SchedulePage:
    """Lists this token's schedules, by name; an admin sees those of all tokens."""
    token = None if caller.is_admin else caller.name
    stored, more = schedules.page(serving.database, token, page_size, page_token)
    listed = [one.as_schedule(schedule_runs.last(serving.database, one.name)) for one in stored]
    return SchedulePage(schedules=listed, next_page_token=more)


@ROUTER.get("/{name}", responses={200: schedule_response("The schedule.", "ETag")})
def get_schedule(found: ReadableSchedule, serving: Serving, response: Response) -> Schedule:
    """Returns a schedule, when it is due next, and its last run."""
    return _answer(serving, found, response)


@ROUTER.delete("/{name}", status_code=204, responses=problems(PRECONDITION))
def delete_schedule(found: ChangeableSchedule, serving: Serving, if_match: IfMatch = None) -> None:
    """Deletes a schedule and its history. Conversions that it started continue, and its outputs stay."""
    check_state(found, if_match)
    if not schedules.delete(serving.database, found):
        raise changed(schedules.get(serving.database, found.name))


@ROUTER.post(
    "/{name}:pause",
    responses={200: schedule_response("It is paused.", "ETag"), **problems(PRECONDITION)},
)
def pause_schedule(found: ChangeableSchedule, serving: Serving, response: Response) -> Schedule:
    """Pauses a schedule: it starts nothing until it is resumed; running conversions continue."""
    stored = schedules.set_paused(
        serving.database, found, clock_of(serving.database).now(), paused=True
    )
    return _answer(serving, _unless_changed(serving, stored, found.name), response)


@ROUTER.post(
    "/{name}:resume",
    responses={200: schedule_response("It is resumed.", "ETag"), **problems(PRECONDITION)},
)
def resume_schedule(found: ChangeableSchedule, serving: Serving, response: Response) -> Schedule:
    """Resumes a schedule, from the next due time, or with every step that is new since it was paused."""
    next_at = first_look(found.body, clock_of(serving.database).now())
    stored = schedules.set_paused(serving.database, found, next_at, paused=False)
    return _answer(serving, _unless_changed(serving, stored, found.name), response)


_NEWEST = RunNow(step=None)


@ROUTER.post(
    "/{name}:run",
    status_code=202,
    responses={
        202: run_response("The run; see its conversion.", "Location"),
        **problems(INVALID, STORAGE, CONFLICT, TOO_MANY, UNAVAILABLE),
    },
)
def run_schedule(
    found: ChangeableSchedule,
    serving: Serving,
    response: Response,
    body: Annotated[RunNow, Body(openapi_examples=RUN_NOW)] = _NEWEST,
) -> ScheduleRun:
    """Runs a schedule now, even if it is paused: a given step, else the newest step, or the cron schedule's source.

    A step that failed, was skipped or came back may run again; a step that was converted may not.
    """
    serving.drain.refuse_new()
    run = run_now(serving.scheduling, found, body.step, clock_of(serving.database).now())
    if run.conversion is not None:
        ABOUT.get().found(run.conversion)
        response.headers["Location"] = f"/v1/conversions/{run.conversion}"
    return run


@ROUTER.get("/{name}/runs")
def list_runs(
    found: ReadableSchedule,
    serving: Serving,
    page_size: Annotated[PageSize, Query()] = DEFAULT_PAGE,
    page_token: PageToken = None,
) -> RunPage:
    """Lists the runs of a schedule, newest first, with the outcome of each tick and each step."""
    return schedule_runs.page(serving.database, found.name, page_size, page_token)


def _answer(serving: Services, stored: StoredSchedule, response: Response) -> Schedule:
    response.headers["ETag"] = stored.tag
    return stored.as_schedule(schedule_runs.last(serving.database, stored.name))


def _unless_changed(serving: Services, stored: StoredSchedule | None, name: str) -> StoredSchedule:
    """The stored schedule; ProblemError if another request changed it first."""
    if stored is None:
        raise changed(schedules.get(serving.database, name))
    return stored
