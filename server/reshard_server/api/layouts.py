"""Routes that store, read, delete and preview named layouts."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Path, Query, Request, Response

from reshard_server.api.answer_or_stream import answered
from reshard_server.api.caller import MAY_READ, Converting, Reading, Serving
from reshard_server.api.openapi.answers import LAYOUT
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import LAYOUTS, PREVIEWS, STORED
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.api.stored import (
    IfMatch,
    IfNoneMatch,
    not_modified,
    tell_stored,
    versions_of,
    with_example,
)
from reshard_server.db.stored import names
from reshard_server.db.stored.kinds import LAYOUT as STORED_LAYOUT
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
from reshard_server.resources import questions, stored
from reshard_server.resources.stored import Expectation, LayoutVersion
from reshard_server.schemas.base import Name, Page, PrefixQuery
from reshard_server.schemas.layout import (
    LayoutBody,
    LayoutPage,
    ListedLayout,
    PreviewRequest,
    StoredLayout,
    VersionPage,
)

ROUTER = APIRouter(prefix="/v1/layouts", tags=["layouts"], route_class=MaskedRoute)

LayoutName = Annotated[Name, Path(description="Name of a layout.")]
_STORED = with_example(STORED)


@ROUTER.get("", dependencies=[MAY_READ])
def list_layouts(query: Annotated[PrefixQuery, Query()], serving: Serving) -> LayoutPage:
    """Lists the newest version of each layout, by name. Every token with the scope read sees all layouts.

    Contents larger than 4096 bytes are left out.
    """
    found = names.newest(
        serving.database,
        STORED_LAYOUT,
        query.page_size,
        query.page_token,
        prefix=query.prefix,
        with_content=True,
    )
    listed = list(map(ListedLayout.of, found.versions))
    return LayoutPage(layouts=listed, next_page_token=found.next_page_token)


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
    expected = Expectation(if_match, if_none_match)
    found, is_new = stored.put(serving, caller, STORED_LAYOUT, name, body.layout, expected)
    tell_stored(STORED_LAYOUT, found, response, is_new=is_new)
    return StoredLayout.of(found)


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
    found = stored.find(serving, STORED_LAYOUT, name)
    return not_modified(found, response, if_none_match) or StoredLayout.of(found)


@ROUTER.get("/{name}/versions", dependencies=[MAY_READ])
def list_layout_versions(
    name: LayoutName, query: Annotated[Page, Query()], serving: Serving
) -> VersionPage:
    """Lists all versions of a layout, newest first. Contents larger than 4096 bytes are left out."""
    found = versions_of(serving, STORED_LAYOUT, name, query)
    listed = list(map(ListedLayout.of, found.versions))
    return VersionPage(versions=listed, next_page_token=found.next_page_token)


@ROUTER.delete("/{name}", status_code=204, responses=problems(FORBIDDEN, PRECONDITION))
def delete_layout(
    name: LayoutName, serving: Serving, caller: Converting, if_match: IfMatch = None
) -> None:
    """Deletes all versions of a layout; conversions that were accepted with one are still carried out."""
    stored.delete(serving, caller, STORED_LAYOUT, name, Expectation(if_match))


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
