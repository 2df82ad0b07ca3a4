"""Schedules: stored, looked at, paused, run now, forgotten."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Query, Response

from reshard_server.api.answers import MaskedRoute
from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import BODIES, RUN_NOW, run_response, schedule_response
from reshard_server.db.schedules import runs as schedule_runs
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
)
from reshard_server.resources import schedules as resource
from reshard_server.resources.resource import PageToken
from reshard_server.resources.schedules import SCHEDULES, Expected, ScheduleName
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

IfMatch = Annotated[
    str | None, Header(description="ETags, or *; only if the schedule is in one of these states.")
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        description="ETags, or *; only if the schedule is in none of these states, or does not exist."
    ),
]


def _to_read(name: ScheduleName, serving: Serving, caller: Reading) -> StoredSchedule:
    return SCHEDULES.visible(serving, caller, name)


def _to_change(name: ScheduleName, serving: Serving, caller: Converting) -> StoredSchedule:
    return SCHEDULES.visible(serving, caller, name)


def _to_put(name: ScheduleName, caller: Converting) -> str:  # noqa: ARG001  (the caller is checked first)
    return SCHEDULES.checked(name)


NewName = Annotated[str, Depends(_to_put)]
ReadableSchedule = Annotated[StoredSchedule, Depends(_to_read)]
ChangeableSchedule = Annotated[StoredSchedule, Depends(_to_change)]


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

    It belongs to the token that stored it first, also after an admin replaced it, and runs with the rights that this token has at each
    run. Everything that can be checked without reading a
    checkpoint is checked now.
    """
    expected = Expected(if_match, if_none_match)
    stored, is_new = resource.put(serving, caller, name, body, expected)
    if is_new:
        response.status_code = 201
        response.headers["Location"] = f"/v1/schedules/{name}"
    return _answer(serving, stored, response)


@ROUTER.get("")
def list_schedules(
    serving: Serving,
    caller: Reading,
    page_size: Annotated[PageSize, Query()] = DEFAULT_PAGE,
    page_token: PageToken = None,
) -> SchedulePage:
    """Lists this token's schedules, by name; an admin sees those of all tokens."""
    return resource.page(serving, caller, page_size, page_token)


@ROUTER.get("/{name}", responses={200: schedule_response("The schedule.", "ETag")})
def get_schedule(found: ReadableSchedule, serving: Serving, response: Response) -> Schedule:
    """Returns a schedule, when it is due next, and its last run."""
    return _answer(serving, found, response)


@ROUTER.delete("/{name}", status_code=204, responses=problems(PRECONDITION))
def delete_schedule(found: ChangeableSchedule, serving: Serving, if_match: IfMatch = None) -> None:
    """Deletes a schedule and its history. Conversions that it started continue, and its outputs stay."""
    resource.delete(serving, found, Expected(if_match))


@ROUTER.post(
    "/{name}:pause",
    responses={200: schedule_response("It is paused.", "ETag"), **problems(PRECONDITION)},
)
def pause_schedule(found: ChangeableSchedule, serving: Serving, response: Response) -> Schedule:
    """Pauses a schedule: it starts nothing until it is resumed; running conversions continue."""
    return _answer(serving, resource.pause(serving, found), response)


@ROUTER.post(
    "/{name}:resume",
    responses={200: schedule_response("It is resumed.", "ETag"), **problems(PRECONDITION)},
)
def resume_schedule(found: ChangeableSchedule, serving: Serving, response: Response) -> Schedule:
    """Resumes a schedule, from the next due time, or with every step that is new since it was paused."""
    return _answer(serving, resource.resume(serving, found), response)


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
    run = resource.run(serving, found, body.step)
    if run.conversion is not None:
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
    return resource.shown(serving, stored)
