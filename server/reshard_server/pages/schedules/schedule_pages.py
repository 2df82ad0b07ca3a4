"""The list of schedules, the page of one, and its buttons: pause, resume, run, delete."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import RedirectResponse, Response

from reshard_server.api.caller import Serving
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Changing, Form, Visiting, number_of
from reshard_server.resources import schedules as resource
from reshard_server.resources.schedules import ANY_STATE, SCHEDULES, ScheduleName
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/schedules", include_in_schema=False)

PAGE_SIZE = 50

PageToken = Annotated[str | None, Query(max_length=1024)]


def _to_see(name: ScheduleName, serving: Serving, visitor: Visiting) -> StoredSchedule:
    return SCHEDULES.visible(serving, visitor.caller, name)


def _to_change(name: ScheduleName, serving: Serving, visitor: Changing) -> StoredSchedule:
    return SCHEDULES.visible(serving, visitor.caller, name)


Seen = Annotated[StoredSchedule, Depends(_to_see)]
Changed = Annotated[StoredSchedule, Depends(_to_change)]


@ROUTER.get("")
def list_schedules(visitor: Visiting, serving: Serving, page_token: PageToken = None) -> Response:
    """Lists schedules by name."""
    found = resource.page(serving, visitor.caller, PAGE_SIZE, page_token)
    more = found.next_page_token
    return page(
        "schedules/schedules.html",
        visitor,
        schedules=found.schedules,
        next_url=more and "/schedules?" + urlencode({"page_token": more}),
        is_first=page_token is None,
    )


@ROUTER.get("/{name}")
def show_schedule(
    found: Seen, visitor: Visiting, serving: Serving, page_token: PageToken = None
) -> Response:
    """Shows one schedule with its history."""
    return _page(found, visitor, serving, page_token)


@ROUTER.post("/{name}/pause")
def pause_schedule(found: Changed, serving: Serving, _: Form) -> Response:
    """Pauses the schedule."""
    resource.pause(serving, found)
    return _back_to(found.name)


@ROUTER.post("/{name}/resume")
def resume_schedule(found: Changed, serving: Serving, _: Form) -> Response:
    """Resumes the schedule."""
    resource.resume(serving, found)
    return _back_to(found.name)


@ROUTER.post("/{name}/run")
def run_schedule(found: Changed, visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Runs the schedule now; its page shows why it cannot run."""
    try:
        step = number_of("step", fields.text("step"))
        if step is not None and step < 0:
            raise ProblemError(INVALID, f"step is {step}; expected 0 or more", "/step")
        run = resource.run(serving, found, step)
    except ProblemError as problem:
        return _page(found, visitor, serving, None, problem, fields.text("step"))
    if run.conversion is not None:
        return RedirectResponse(f"/conversions/{run.conversion}", 303)
    return _back_to(found.name)


@ROUTER.post("/{name}/delete")
def delete_schedule(found: Changed, serving: Serving, _: Form) -> Response:
    """Deletes the schedule and its history."""
    resource.delete(serving, found, ANY_STATE)
    return RedirectResponse("/schedules", 303)


def _back_to(name: str) -> Response:
    return RedirectResponse(f"/schedules/{name}", 303)


def _page(
    found: StoredSchedule,
    visitor: Visiting,
    serving: Services,
    page_token: str | None,
    problem: ProblemError | None = None,
    step: str = "",
) -> Response:
    history = schedule_runs.page(serving.database, found.name, PAGE_SIZE, page_token)
    more = history.next_page_token
    return page(
        "schedules/schedule.html",
        visitor,
        200 if problem is None else problem.kind.status,
        schedule=resource.shown(serving, found),
        runs=history.runs,
        next_url=more and f"/schedules/{found.name}?" + urlencode({"page_token": more}),
        is_first=page_token is None,
        problem=problem,
        step=step,
    )
