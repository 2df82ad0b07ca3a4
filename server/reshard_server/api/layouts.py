"""Routes that store, read, delete and preview named layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Header, Path, Query, Request, Response

from reshard import check_arguments
from reshard_server.api.answer_or_stream import answered
from reshard_server.api.caller import MAY_READ, Converting, Reading, Serving
from reshard_server.api.openapi.answers import LAYOUT
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import LAYOUTS, PREVIEWS, STORED, header_descriptions
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.db import layouts
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    FORBIDDEN,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    PRECONDITION,
    QUOTA,
    STORAGE,
    UNAVAILABLE,
)
from reshard_server.jobs.check_request import for_field
from reshard_server.resources import questions
from reshard_server.resources.layouts import LayoutVersion, find, gone, tag_of
from reshard_server.schemas.base import Name, Page
from reshard_server.schemas.layout import (
    LayoutBody,
    LayoutPage,
    LayoutQuery,
    PreviewRequest,
    StoredLayout,
    VersionPage,
)

IfMatch = Annotated[
    str | None,
    Header(
        description="Change it only if it still has this ETag; * if it exists.", max_length=1024
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(description="Only if it has none of these ETags; * if it does not exist."),
]


def names(header: str, tag: str | None) -> bool:
    """Whether the header names this ETag; None if the resource does not exist."""
    known = [known.strip().removeprefix("W/") for known in header.split(",")]
    return tag is not None and (tag in known or "*" in known)


def expectation(if_match: str | None, if_none_match: str | None) -> Callable[[str | None], bool]:
    """A function of the current ETag (None if nothing exists): whether the request expects it."""

    def holds(tag: str | None) -> bool:
        matches = if_match is None or names(if_match, tag)
        return matches and not (if_none_match is not None and names(if_none_match, tag))

    return holds


ROUTER = APIRouter(prefix="/v1/layouts", tags=["layouts"], route_class=MaskedRoute)

LayoutName = Annotated[Name, Path(description="Name of a layout.")]
_STORED = {"content": {"application/json": {"example": STORED}}, **header_descriptions("ETag")}


@ROUTER.get("", dependencies=[MAY_READ])
def list_layouts(query: Annotated[LayoutQuery, Query()], serving: Serving) -> LayoutPage:
    """Lists the newest version of each layout, by name. Every token with the scope read sees all layouts.

    Contents larger than 4096 bytes are left out.
    """
    return layouts.page(serving.database, query.prefix, query.page_size, query.page_token)


@ROUTER.put(
    "/{name}",
    response_model=StoredLayout,
    responses={
        200: {
            "description": "The newest version has this content already; nothing changed.",
            **_STORED,
        },
        201: {"description": "A new version.", "model": StoredLayout, **_STORED},
        **problems(BAD_LAYOUT, FORBIDDEN, PRECONDITION, QUOTA),
    },
)
def put_layout(
    name: LayoutName,
    body: Annotated[LayoutBody, Body(openapi_examples=LAYOUTS)],
    serving: Serving,
    caller: Converting,
    response: Response,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> StoredLayout:
    """Stores a layout as the newest version of its name. The name belongs to the token that stored it first.

    The layout's form is checked now; the preview checks whether it fits a checkpoint.
    """
    with for_field("/layout"):
        check_arguments(layout=body.layout)
    holds = expectation(if_match, if_none_match)
    found, is_new = layouts.put(
        serving.database,
        name,
        body.layout,
        token=caller.name,
        is_admin=caller.is_admin,
        expected=lambda now: holds(tag_of(now)),
        settings=serving.settings,
    )
    response.status_code = 201 if is_new else 200
    response.headers["ETag"] = tag_of(found) or ""
    if is_new:
        response.headers["Location"] = f"/v1/layouts/{found.name}@{found.version}"
    return found


@ROUTER.get(
    "/{name}",
    dependencies=[MAY_READ],
    response_model=StoredLayout,
    responses={
        200: {"description": "The layout.", **_STORED},
        304: {"description": "It has not changed since this ETag."},
    },
)
def get_layout(
    name: LayoutVersion,
    serving: Serving,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> StoredLayout | Response:
    """Returns a layout: its newest version, or ``name@version``."""
    found = find(serving, name)
    tag = tag_of(found) or ""
    if if_none_match is not None and names(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    return found


@ROUTER.get("/{name}/versions", dependencies=[MAY_READ])
def list_layout_versions(
    name: LayoutName, query: Annotated[Page, Query()], serving: Serving
) -> VersionPage:
    """Lists all versions of a layout, newest first. Contents larger than 4096 bytes are left out."""
    found = layouts.versions(serving.database, name, query.page_size, query.page_token)
    if found is None:
        raise gone(name)
    return found


@ROUTER.delete("/{name}", status_code=204, responses=problems(FORBIDDEN, PRECONDITION))
def delete_layout(
    name: LayoutName, serving: Serving, caller: Converting, if_match: IfMatch = None
) -> None:
    """Deletes all versions of a layout; conversions that were accepted with one are still carried out."""
    holds = expectation(if_match, None)
    found = layouts.delete(
        serving.database,
        name,
        token=caller.name,
        is_admin=caller.is_admin,
        expected=lambda now: holds(tag_of(now)),
    )
    if found is None:
        raise gone(name)


@ROUTER.post(
    ":preview",
    response_model=LAYOUT,
    responses=problems(
        NOT_FOUND,
        BAD_LAYOUT,
        BAD_PLAN,
        NO_CHECKPOINT,
        BAD_CHECKPOINT,
        STORAGE,
        UNAVAILABLE,
        *OF_A_BUCKET,
    ),
)
async def preview_layout(
    body: Annotated[PreviewRequest, Body(openapi_examples=PREVIEWS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Shows how a layout would split each tensor of a checkpoint: shards, their shapes and bytes, bytes per device.

    Reads metadata only. Rules that match nothing become warnings; a layout that does not fit is refused, as for a
    conversion.
    """
    question = await run_sync(questions.preview, serving, caller, body, limiter=serving.finders)
    return await answered(request, serving, question)
