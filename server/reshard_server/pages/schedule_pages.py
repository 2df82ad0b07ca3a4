"""The list of schedules, the page of one with its buttons (pause, resume, run, delete), and the form of a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from reshard.errors import ReshardError
from reshard_server.api.caller import Serving
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.error_handlers import invalid
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.middleware.body_limits import check_texts
from reshard_server.pages import conversion_form
from reshard_server.pages.conversion_form import FilledForm, layout_in, members_of
from reshard_server.pages.rendering import next_url, page
from reshard_server.pages.stored import stored_choices
from reshard_server.pages.visitor import Changing, Fields, Form, Visiting, Visitor, number_of
from reshard_server.resources import schedules as resource
from reshard_server.resources.schedules import ANY_STATE, SCHEDULES, Expected, ScheduleName
from reshard_server.schemas.schedule import ScheduleBody
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
    return page(
        "schedules/schedules.html",
        visitor,
        schedules=found.schedules,
        next_url=next_url("/schedules", found.next_page_token),
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
    return page(
        "schedules/schedule.html",
        visitor,
        schedule=resource.shown(serving, found),
        runs=history.runs,
        next_url=next_url(f"/schedules/{found.name}", history.next_page_token),
        is_first=page_token is None,
        problem=problem,
        step=step,
    )


NEW = APIRouter(prefix="/new-schedule", include_in_schema=False)

LONGEST_NAME = 128


@NEW.get("")
def show_form(visitor: Changing, serving: Serving) -> Response:
    """Shows the empty form."""
    return _form_page(serving, visitor, empty_form())


@NEW.post("")
def send_form(visitor: Changing, serving: Serving, fields: Form) -> Response:
    """Stores the schedule under a new name; errors appear beside their fields."""
    form = sent_form(fields)
    try:
        return _store(serving, visitor, form)
    except (ReshardError, ProblemError) as error:
        problem = problem_of(error) if isinstance(error, ReshardError) else error
    return _form_page(serving, visitor, form.with_problem(problem), problem.kind.status)


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
            problem.field = "name"
            problem.detail = f"the name {name!r} is taken; choose another name"
        raise
    return RedirectResponse(f"/schedules/{name}", 303)


def _form_page(
    serving: Services, visitor: Visitor, form: ScheduleForm, status: int = 200
) -> Response:
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


TARGET_TEXTS = ("target", "mesh", "missing_axes", "map", "sizes", "to", "cast", "compression")
"""Members of the target with a text field, besides its layout."""

_SHOWN = (
    "name", "when", "cron", "source", "every", "target", "layout", "map", "to", "keep",
)  # fmt: skip
TEXTS = tuple(dict.fromkeys((*_SHOWN, "layout_text", *TARGET_TEXTS)))
DEFAULTS = {
    "when": "steps",
    **{n: d for n, d in conversion_form.DEFAULTS.items() if n in TARGET_TEXTS},
}
FLAGS = ("newest_only", "latest", "catch_up", "overwrite")

_PLACES = {"directory": "source", "step": "latest"}
"""Members of a schedule whose fields have other names."""


@dataclass(frozen=True)
class ScheduleForm(FilledForm):
    """The contents of the form of a schedule."""

    always_shown = _SHOWN

    def with_problem(self, problem: ProblemError) -> ScheduleForm:
        """The form with the problem beside its field."""
        several = problem.extra.get("errors") or ()
        found = {self._name(e["field"]): e["detail"] for e in several}
        return ScheduleForm(
            self.values, self.flags, found or {self._name(problem.field): problem.detail}
        )

    def _name(self, pointer: str | None) -> str:
        """``/targets/0/layout`` → ``layout``."""
        parts = [p for p in (pointer or "").split("/") if p and not p.isdecimal()]
        known = [_PLACES.get(p, p) for p in parts if _PLACES.get(p, p) in (*TEXTS, *FLAGS)]
        name = known[-1] if known else ""
        return "layout_text" if name == "layout" and self.values["layout_text"] else name


def empty_form() -> ScheduleForm:
    """A form with the defaults."""
    return ScheduleForm({**dict.fromkeys(TEXTS, ""), **DEFAULTS})


def sent_form(fields: Fields) -> ScheduleForm:
    """The form that a browser sent."""
    return ScheduleForm(
        {name: fields.text(name) for name in TEXTS},
        frozenset(name for name in FLAGS if fields.has(name)),
    )


def body_of(form: ScheduleForm) -> ScheduleBody:
    """The schedule of a form. Raises ProblemError for an invalid form."""
    when, layout = _when(form), layout_in(form.values)
    target = {
        **members_of(TARGET_TEXTS, form.values),
        "layout": layout,
        "overwrite": "overwrite" in form.flags,
    }
    keep = number_of("keep", form.values["keep"])
    members = {"when": when, "targets": [target], "keep": keep}
    check_texts(members)
    try:
        return ScheduleBody.model_validate(members)
    except ValidationError as error:
        other = "NewSteps" if form.values["when"] == "clock" else "Clock"
        found = [e for e in error.errors() if other not in e["loc"]]
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in found]) from None


def _when(form: ScheduleForm) -> dict[str, Any]:
    source = form.values["source"]
    if form.values["when"] == "clock":
        catch_up = "catch_up" in form.flags
        step = "latest" if "latest" in form.flags else None
        return {"cron": form.values["cron"], "source": source, "step": step, "catch_up": catch_up}
    every = number_of("every", form.values["every"])
    newest_only = "newest_only" in form.flags
    return {"directory": source, "every": 1 if every is None else every, "newest_only": newest_only}
