"""The page of a checkpoint: its contents, and a link to convert it."""

from __future__ import annotations

import json
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard_server.api.answer_or_stream import answer_to
from reshard_server.api.caller import Serving
from reshard_server.errors.problems import ProblemError
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Visiting
from reshard_server.resources import questions

ROUTER = APIRouter(prefix="/checkpoint", include_in_schema=False)


@ROUTER.get("")
async def show_checkpoint(
    visitor: Visiting,
    request: Request,
    serving: Serving,
    path: Annotated[str, Query(min_length=1, max_length=4096)],
) -> Response:
    """Shows tensors and meshes, or why the checkpoint cannot be read."""
    found, problem = None, None
    try:
        question = await run_sync(
            questions.inspection,
            serving,
            visitor.caller,
            path,
            "contents",
            limiter=serving.finders,
        )
        found = json.loads(await answer_to(request, serving, question))
    except ProblemError as refused:
        problem = refused
    return page(
        "checkpoints/checkpoint.html",
        visitor,
        200 if problem is None else problem.kind.status,
        path=path,
        found=found,
        problem=problem,
    )
