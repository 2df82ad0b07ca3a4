"""The list of layouts, the page of one version, and its preview on a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard_server.api.answer_or_stream import answer_to
from reshard_server.api.caller import Serving
from reshard_server.db.stored.kinds import LAYOUT, StoredVersion
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.pages.rendering import page
from reshard_server.pages.source_choices import sources
from reshard_server.pages.stored_names import content_and_versions, names_page
from reshard_server.pages.visitor import Visiting, Visitor
from reshard_server.resources import questions
from reshard_server.resources.stored import LayoutVersion, find
from reshard_server.schemas.layout import PreviewRequest
from reshard_server.services import Services

ROUTER = APIRouter(prefix="/layouts", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Tried:
    """A layout tried on a checkpoint: the result, or the problem."""

    checkpoint: str
    preview: dict[str, Any] | None = None
    problem: ProblemError | None = None


PageToken = Annotated[str | None, Query(max_length=1024)]


@ROUTER.get("")
def list_layouts(visitor: Visiting, serving: Serving, page_token: PageToken = None) -> Response:
    """Lists layouts by name, in their newest versions."""
    return names_page(serving, visitor, LAYOUT, page_token)


@ROUTER.get("/{name}")
async def show_layout(
    name: LayoutVersion, visitor: Visiting, serving: Serving, page_token: PageToken = None
) -> Response:
    """Shows one version, the newest by default, the list of versions, and a form for the preview."""
    offered = await sources(serving, visitor.caller)
    return await run_sync(_page, serving, visitor, name, page_token, offered, Tried(""))


@ROUTER.get("/{name}/preview")
async def preview_layout(
    name: LayoutVersion,
    visitor: Visiting,
    request: Request,
    serving: Serving,
    checkpoint: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    """Previews the split of each tensor of a checkpoint by the layout, or shows the reason why it cannot."""
    given = checkpoint.strip()
    try:
        if not given:
            raise none_given()
        body = PreviewRequest.model_validate({"checkpoint": given, "layout": name})
        question = await run_sync(
            questions.preview,
            serving,
            visitor.caller,
            body,
            "layout_summary",
            limiter=serving.finders,
        )
        tried = Tried(given, json.loads(await answer_to(request, serving, question)))
    except ProblemError as refused:
        tried = Tried(given, problem=refused)
    offered = await sources(serving, visitor.caller)
    return await run_sync(_page, serving, visitor, name, None, offered, tried)


def none_given() -> ProblemError:
    """The problem if no checkpoint is given."""
    return ProblemError(
        INVALID,
        "no checkpoint is given; give one as ROOT/path",
        "checkpoint",
    )


def _page(
    serving: Services,
    visitor: Visitor,
    name: str,
    page_token: str | None,
    offered: list[str],
    tried: Tried,
) -> Response:
    found = find(serving, LAYOUT, name)
    problem = tried.problem
    return page(
        "stored/layout.html",
        visitor,
        200 if problem is None else problem.kind.status,
        layout=found,
        mesh=_mesh(found),
        **content_and_versions(serving, LAYOUT, found, page_token),
        sources=offered,
        checkpoint=tried.checkpoint,
        preview=tried.preview,
        problem=problem,
    )


def _mesh(found: StoredVersion) -> dict[str, Any] | None:
    """The layout's mesh from either of its two forms; None if it has none."""
    mesh = found.content.get("mesh")
    if not isinstance(mesh, dict):
        return None
    if {"axes", "shape"} <= mesh.keys():
        return {"axes": mesh["axes"], "shape": mesh["shape"]}
    sizes = {name: size for name, size in mesh.items() if isinstance(size, int)}
    return {"axes": list(sizes), "shape": list(sizes.values())}
