"""Fills the form's layout with the starter layout of the chosen checkpoint, for people to change."""

from __future__ import annotations

import json
from dataclasses import replace

from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import Request

from reshard_server.api.answer_or_stream import answer_to
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import ProblemError
from reshard_server.pages.conversions.conversion_form import ConversionForm
from reshard_server.resources import questions
from reshard_server.services import Services

PATIENCE_SECONDS = 5.0
"""After this long the form is shown without a starter: it can be asked for by its button."""


async def with_starter(
    request: Request, serving: Services, caller: Caller, form: ConversionForm
) -> ConversionForm:
    """The form with a starter over its mesh, or over the source's own. ProblemError if the source cannot be read."""
    source, mesh = form.values["source"], form.values["mesh"] or None
    question = await run_sync(
        questions.starter, serving, caller, source, mesh, limiter=serving.finders
    )
    text = json.loads(await answer_to(request, serving, question))["starter"].strip()
    return replace(form, values={**form.values, "layout_text": text}, starter=text, errors={})


async def with_starter_if_there(
    request: Request, serving: Services, caller: Caller, form: ConversionForm
) -> ConversionForm:
    """The same; the form as it is where that is not possible, or takes long."""
    with move_on_after(PATIENCE_SECONDS):
        try:
            return await with_starter(request, serving, caller, form)
        except ProblemError:
            return form  # its preview says what is wrong
    return form
