"""The form of a new conversion, its preview, and its start."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Annotated

from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from reshard.errors import ReshardError
from reshard_server.api.answers import answer_to
from reshard_server.api.caller import Serving, looked_up
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.observability.logs import ABOUT
from reshard_server.pages.checkpoint_pages import sources
from reshard_server.pages.conversion_form import (
    FIELDS_OF,
    FLAGS,
    TEXTS,
    ConversionForm,
    empty_form,
    form_of,
    key_of,
    plan_request_of,
    request_of,
    sent_form,
)
from reshard_server.pages.plan_pictures import DrawnPlan, planned
from reshard_server.pages.rendering import page
from reshard_server.pages.stored import stored_choices
from reshard_server.pages.visitor import Changing, Form, Visitor
from reshard_server.resources import conversions as resource
from reshard_server.resources import questions
from reshard_server.resources.conversions import CONVERSIONS, visible
from reshard_server.schemas.conversion import targets_of
from reshard_server.services import Services

PATIENCE_SECONDS = 5.0
"""Seconds after which the form is shown without a starter; its button then makes one."""


async def with_starter(
    request: Request, serving: Services, caller: Caller, form: ConversionForm
) -> ConversionForm:
    """The form with a starter over its mesh, or over the source's own. ProblemError if the source cannot be read."""
    source, mesh = form.values["source"], form.values["mesh"] or None
    question = await serving.find(questions.starter, caller, source, mesh)
    text = json.loads(await answer_to(request, serving, question))["starter"].strip()
    return replace(form, values={**form.values, "layout_text": text}, starter=text, errors={})


async def with_starter_if_there(
    request: Request, serving: Services, caller: Caller, form: ConversionForm
) -> ConversionForm:
    """``with_starter``, or the unchanged form if that fails or takes long."""
    with move_on_after(PATIENCE_SECONDS):
        try:
            return await with_starter(request, serving, caller, form)
        except ProblemError:
            return form  # its preview says what is wrong
    return form


ROUTER = APIRouter(prefix="/new-conversion", include_in_schema=False)

Given = Annotated[str, Query(max_length=4096)]


@ROUTER.get("")
async def show_form(
    visitor: Changing,
    request: Request,
    serving: Serving,
    source: Given = "",
    target: Given = "",
    mesh: Given = "",
    layout: Annotated[str, Query(max_length=139)] = "",
    map: Annotated[str, Query(max_length=139)] = "",  # noqa: A002  (the name of the parameter)
    again: Annotated[str, Query(max_length=64)] = "",
    number: Annotated[int, Query(ge=0, le=99)] = 0,
) -> Response:
    """Shows the form, filled from the query: with values, or with one target of an earlier conversion.

    If it names a source, and neither a layout nor a map, the layout is the source's starter.
    """
    key = secrets.token_urlsafe(16)
    if again:
        form = await looked_up(serving, _again, serving, visitor, key, again, number)
        return await _page(serving, visitor, form)
    form = empty_form(key, source=source, target=target, layout=layout, map=map, mesh=mesh)
    if source and not layout and not map:
        form = await with_starter_if_there(request, serving, visitor.caller, form)
    return await _page(serving, visitor, form)


def _again(
    serving: Services, visitor: Visitor, key: str, conversion: str, number: int
) -> ConversionForm:
    found = visible(serving, visitor.caller, conversion)
    targets = targets_of(found.request)
    if number >= len(targets):
        raise CONVERSIONS.gone(conversion)
    if getattr(found.request, "merge", None) is not None:
        raise ProblemError(
            INVALID,
            f"{conversion} merges checkpoints, which this form cannot ask for; send the request again by HTTP, or use reshard merge --server",
            "again",
        )
    return form_of(key, found, targets[number])


@ROUTER.post("")
async def send_form(
    visitor: Changing, request: Request, serving: Serving, fields: Form
) -> Response:
    """Starts the conversion, shows its preview or fills in a layout; errors appear beside their fields."""
    form = sent_form(fields)
    try:
        ABOUT.get().is_look = fields.text("do") != "start"
        if fields.text("do") == "fill":
            filled = await with_starter(request, serving, visitor.caller, form)
            return await _page(serving, visitor, filled)
        wanted = request_of(form)
        if fields.text("do") == "start":
            key = key_of(form, wanted)
            made = await resource.create(serving, visitor.caller, wanted, key)
            return RedirectResponse(f"/conversions/{made.id}", 303)
        plan = await planned(request, serving, visitor.caller, plan_request_of(wanted), None)
    except (ReshardError, ProblemError) as error:
        problem = problem_of(error) if isinstance(error, ReshardError) else error
        found = await run_sync(form.with_problem, problem)
        return await _page(serving, visitor, found, None, problem.kind.status)
    return await _page(serving, visitor, form, plan)


async def _page(
    serving: Services,
    visitor: Visitor,
    form: ConversionForm,
    plan: DrawnPlan | None = None,
    status: int = 200,
) -> Response:
    caller = visitor.caller
    layouts, maps = await looked_up(serving, stored_choices, serving)
    offered = await sources(serving, caller)
    shown = {
        "form": form,
        "planned": plan,
        "names": (TEXTS, FLAGS),
        "fields_of": FIELDS_OF,
        "sources": offered,
        "layouts": layouts,
        "maps": maps,
        "readable": [r for r in serving.settings.roots if caller.may_read(r)],
        "writable": [r for r in serving.settings.roots if caller.may_write(r)],
        "ceiling": serving.settings.max_memory,
        "threads": serving.settings.workers,
    }
    return await run_sync(lambda: page("conversions/new_conversion.html", visitor, status, **shown))
