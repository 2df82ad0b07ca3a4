"""The form of a new schedule with one target."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from reshard.errors import ReshardError
from reshard_server.api.caller import Serving
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.pages.rendering import page
from reshard_server.pages.schedules.schedule_form import (
    ScheduleForm,
    body_of,
    empty_form,
    sent_form,
)
from reshard_server.pages.stored import stored_choices
from reshard_server.pages.visitor import Changing, Form, Visitor
from reshard_server.resources import schedules as resource
from reshard_server.resources.schedules import SCHEDULES, Expected
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/new-schedule", include_in_schema=False)

LONGEST_NAME = 128


@ROUTER.get("")
def show_form(visitor: Changing, serving: Serving) -> Response:
    """Shows the empty form."""
    return _page(serving, visitor, empty_form())


@ROUTER.post("")
def send_form(visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Stores the schedule under a new name; errors appear beside their fields."""
    form = sent_form(fields)
    try:
        return _store(serving, visitor, form)
    except ReshardError as error:
        problem = problem_of(error)
    except ProblemError as refused:
        problem = refused
    return _page(serving, visitor, form.with_problem(problem), problem.kind.status)


def _store(serving: Services, visitor: Visitor, form: ScheduleForm) -> Response:
    name = SCHEDULES.checked(form.values["name"])
    if len(name) > LONGEST_NAME:
        raise ProblemError(
            INVALID, f"the name is longer than {LONGEST_NAME} characters; shorten it", "name"
        )
    try:
        resource.put(serving, visitor.caller, name, body_of(form), Expected(none_match="*"))
    except ProblemError as problem:
        if problem.kind.status in (409, 412):
            problem.field, problem.detail = (
                "name",
                f"the name {name!r} is taken; choose another name",
            )
        raise
    return RedirectResponse(f"/schedules/{name}", 303)


def _page(serving: Services, visitor: Visitor, form: ScheduleForm, status: int = 200) -> Response:
    caller = visitor.caller
    layouts, maps = stored_choices(serving)
    return page(
        "schedules/new_schedule.html",
        visitor,
        status,
        form=form,
        layouts=layouts,
        maps=maps,
        readable=[r for r in serving.settings.roots if caller.may_read(r)],
        writable=[r for r in serving.settings.roots if caller.may_write(r)],
    )
