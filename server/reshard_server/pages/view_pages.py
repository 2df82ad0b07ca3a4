"""The list of views, and the page of one: how clients load it, its revisions, files, readers and rules."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard_server.api import views as api
from reshard_server.api.caller import Serving, looked_up
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import VIEW
from reshard_server.errors.problems import ProblemError
from reshard_server.pages.rendering import layout_text, next_url, page
from reshard_server.pages.stored import LONGEST_SHOWN
from reshard_server.pages.visitor import Visiting
from reshard_server.schemas.view import ViewRevision
from reshard_server.services import Services
from reshard_server.views.catalogue import MAIN

T = TypeVar("T")

ROUTER = APIRouter(prefix="/views", include_in_schema=False)

PAGE_SIZE = 20
"""Views of a page, each of which is looked for in its storage."""

MOST_REVISIONS = 10
MOST_FILES = 500
"""Limits of a page's rows; the API's answer has all."""

LOOKS = 4
"""Views of a page that are looked for at once: a storage that hangs keeps as many threads."""

PATIENCE_SECONDS = 2.0
"""Seconds after which the list is shown without what no storage has told."""


@ROUTER.get("")
async def list_views(
    visitor: Visiting,
    serving: Serving,
    views: api.Views,
    page_token: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Lists views by name, with their newest revisions, or the reasons why there are none."""
    caller = visitor.caller
    sources, further = await looked_up(serving, _sources, serving, caller, page_token)
    found: dict[str, tuple[ViewRevision | None, ProblemError | None]] = {}
    left = deque(sources)

    async def look() -> None:
        while left:
            name = left.popleft()
            main, problem = await _or_problem(views.revision(caller, name))
            found[name] = api.shown_revision(views, main) if main else None, problem

    looks = [asyncio.create_task(look()) for _ in range(LOOKS)]
    await asyncio.wait(looks, timeout=PATIENCE_SECONDS)
    left.clear()
    return page(
        "views/views.html",
        visitor,
        sources=sources,
        found=found,
        loads={name: api.shown_loads(views, caller, name) for name in sources},
        next_url=next_url("/views", further),
        is_first=page_token is None,
    )


def _sources(
    serving: Services, caller: Caller, page_token: str | None
) -> tuple[dict[str, str], str | None]:
    """The sources of the views that a caller may see, by name, and the token of the next page."""
    listed = versions.newest(serving.database, VIEW, PAGE_SIZE, page_token)
    named = (versions.get(serving.database, VIEW, one.name) for one in listed.versions)
    seen = (one for one in named if one is not None and one.is_for(caller.may_read))
    return {one.name: one.content["source"] for one in seen}, listed.next_page_token


@ROUTER.get("/{name}")
async def show_view(
    name: api.ViewName,
    visitor: Visiting,
    request: Request,
    serving: Serving,
    views: api.Views,
    revision: api.Asked = MAIN,
    before: api.Before = None,
) -> Response:
    """Shows a view with the files of one revision, or the reason why it cannot be read."""
    caller, stored = visitor.caller, await views.stored(visitor.caller, name)
    files, problem = await _or_problem(api.list_files(name, views, caller, revision))
    # Asked for afterwards, so that the list tells that this one is planned.
    listed = api.list_revisions(name, views, caller, MOST_REVISIONS, before)
    revisions, unlisted = await _or_problem(listed)
    steps = [one.step for one in revisions.revisions] if revisions else []
    is_cut = len(steps) == MOST_REVISIONS and steps[-1] is not None
    return page(
        "views/view.html",
        visitor,
        200 if revision == MAIN else None,
        view=stored,
        text=layout_text(stored.content)[:LONGEST_SHOWN],
        revision=revision,
        files=files,
        most_files=MOST_FILES,
        problem=problem,
        revisions=revisions,
        unlisted=unlisted,
        older=steps[-1] if is_cut else None,
        is_first=before is None,
        loads=api.shown_loads(views, caller, name),
        address=(serving.settings.public_url or str(request.base_url)).rstrip("/"),
        has_s3=serving.tokens.s3_key(caller.name) is not None,
    )


async def _or_problem(answer: Awaitable[T]) -> tuple[T | None, ProblemError | None]:
    """The answer, or the problem that the page shows in its place."""
    try:
        return await answer, None
    except ProblemError as problem:
        return None, problem
