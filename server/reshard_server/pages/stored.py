"""Pages of stored layouts and maps: the list of names, one version, and a layout's preview on a checkpoint."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard.maps.read_map import recipe_names
from reshard_server.api.caller import Serving
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import KINDS, LAYOUT, MAP, StoredKind, StoredVersion
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.pages.checkpoint_pages import shown_answer, sources
from reshard_server.pages.rendering import layout_text, next_url, page
from reshard_server.pages.visitor import Visiting, Visitor
from reshard_server.resources import questions
from reshard_server.resources.stored import VersionName, find
from reshard_server.schemas.stored import PreviewRequest
from reshard_server.services import Services

PAGE_SIZE = 50
LONGEST_SHOWN = 65_536
"""Limit of a text in characters; the API's answer has all of it."""

MOST_STORED = 200
"""Limit of the names of one kind in a form; a request to the API may name any."""

PageToken = Annotated[str | None, Query(max_length=1024)]

Choices = list[tuple[str, str]]
"""Values and their texts."""

ROUTER = APIRouter(include_in_schema=False)


@ROUTER.get("/layouts")
def list_layouts(visitor: Visiting, serving: Serving, page_token: PageToken = None) -> Response:
    """Lists layouts by name, in their newest versions."""
    return _names(serving, visitor, LAYOUT, page_token)


@ROUTER.get("/maps")
def list_maps(visitor: Visiting, serving: Serving, page_token: PageToken = None) -> Response:
    """Lists maps by name, in their newest versions, and the recipes."""
    return _names(serving, visitor, MAP, page_token, recipe_names())


@ROUTER.get("/maps/{name}")
def show_map(
    name: VersionName, visitor: Visiting, serving: Serving, page_token: PageToken = None
) -> Response:
    """Shows one version, the newest by default, and the list of versions."""
    found = find(serving, visitor.caller, MAP, name)
    return page("stored/map.html", visitor, map=found, **_shown(serving, MAP, found, page_token))


@ROUTER.get("/layouts/{name}")
async def show_layout(
    name: VersionName, visitor: Visiting, serving: Serving, page_token: PageToken = None
) -> Response:
    """Shows one version, the newest by default, the list of versions, and a form for the preview."""
    offered = await sources(serving, visitor.caller)
    return await run_sync(_layout, serving, visitor, name, page_token, offered)


@ROUTER.get("/layouts/{name}/preview")
async def preview_layout(
    name: VersionName,
    visitor: Visiting,
    request: Request,
    serving: Serving,
    checkpoint: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    """Previews the split of each tensor of a checkpoint by the layout, or shows the reason why it cannot."""
    checkpoint = checkpoint.strip()
    if checkpoint:
        body = PreviewRequest.model_validate({"checkpoint": checkpoint, "layout": name})
        preview, problem = await shown_answer(
            request, serving, questions.preview, visitor.caller, body, "layout_summary"
        )
    else:
        none_given = "no checkpoint is given; give one as ROOT/path"
        preview, problem = None, ProblemError(INVALID, none_given, "checkpoint")
    offered = await sources(serving, visitor.caller)
    return await run_sync(
        _layout, serving, visitor, name, None, offered, checkpoint, preview, problem
    )


def stored_choices(serving: Services) -> tuple[Choices, Choices]:
    """Layouts, and maps with recipes behind them, for a form."""

    layouts, maps = (
        [
            (found.name, found.name)
            for found in versions.newest(serving.database, kind, MOST_STORED).versions
        ]
        for kind in KINDS
    )
    return layouts, [*maps, *((name, f"{name} (recipe)") for name in recipe_names())]


def _layout(
    serving: Services,
    visitor: Visitor,
    name: str,
    page_token: str | None,
    offered: list[str],
    checkpoint: str = "",
    preview: dict[str, Any] | None = None,
    problem: ProblemError | None = None,
) -> Response:
    """The page of a layout, perhaps tried on a checkpoint, with the result or the problem."""
    found = find(serving, visitor.caller, LAYOUT, name)
    return page(
        "stored/layout.html",
        visitor,
        layout=found,
        mesh=_mesh(found),
        **_shown(serving, LAYOUT, found, page_token),
        sources=offered,
        checkpoint=checkpoint,
        preview=preview,
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


def _names(
    serving: Services,
    visitor: Visitor,
    kind: StoredKind,
    page_token: str | None,
    recipes: tuple[str, ...] = (),
) -> Response:
    """The page that lists names, in their newest versions, and recipes below them."""
    found = versions.newest(serving.database, kind, PAGE_SIZE, page_token)
    return page(
        "stored/names.html",
        visitor,
        noun=kind.noun,
        found=found.versions,
        recipes=recipes,
        next_url=next_url(f"/{kind.noun}s", found.next_page_token),
        is_first=page_token is None,
    )


def _shown(
    serving: Services, kind: StoredKind, found: StoredVersion, page_token: str | None
) -> dict[str, Any]:
    """The text of a version, and the other versions, for its page."""
    listed = versions.versions(serving.database, kind, found.name, PAGE_SIZE, page_token)
    text = found.content if isinstance(found.content, str) else layout_text(found.content)
    return {
        "text": text[:LONGEST_SHOWN],
        "is_cut": len(text) > LONGEST_SHOWN,
        "versions": listed.versions,
        "next_url": next_url(f"/{kind.noun}s/{found.name}", listed.next_page_token),
        "is_first": page_token is None,
    }
