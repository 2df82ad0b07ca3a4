"""The list of checkpoints below a root, the page of one, that of versions of weights, and the sources that forms offer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from reshard_server.api.answers import answer_to
from reshard_server.api.caller import Serving
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.ask import Question
from reshard_server.pages.rendering import next_url, page
from reshard_server.pages.visitor import Visiting
from reshard_server.resources import questions
from reshard_server.resources.browse import browse
from reshard_server.schemas.checkpoint import CheckpointPage, CheckpointQuery, FoundCheckpoint
from reshard_server.services import Services

ROUTER = APIRouter(include_in_schema=False)

PAGE_SIZE = 50
MOST_TENSORS = 500
"""Limit of a page's rows; the API's answer has all."""


@ROUTER.get("/checkpoints")
async def list_checkpoints(
    visitor: Visiting,
    serving: Serving,
    root: Annotated[str, Query(max_length=128)] = "",
    prefix: Annotated[str, Query(max_length=4096)] = "",
    page_token: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Lists a root, or a folder below it; without a root, the visitor's only root."""
    readable = sorted(r for r in serving.settings.roots if visitor.caller.may_read(r))
    prefix = prefix.strip("/")
    if not root and len(readable) == 1:
        root = readable[0]
    found = CheckpointPage(checkpoints=[])
    if root:
        query = CheckpointQuery(
            root=root, prefix=prefix, page_size=PAGE_SIZE, page_token=page_token
        )
        found = await serving.find(questions.checkpoints_below, visitor.caller, query)
    return page(
        "checkpoints/checkpoints.html",
        visitor,
        root=root,
        prefix=prefix,
        roots=readable,
        found=found.checkpoints,
        next_url=next_url("/checkpoints", found.next_page_token, root=root, prefix=prefix),
        is_first=page_token is None,
    )


@ROUTER.get("/checkpoint")
async def show_checkpoint(
    visitor: Visiting,
    request: Request,
    serving: Serving,
    path: Annotated[str, Query(min_length=1, max_length=4096)],
) -> Response:
    """Shows tensors and meshes, or the reason why the checkpoint cannot be read."""
    found, problem = await shown_answer(
        request, serving, questions.inspection, visitor.caller, path, "contents"
    )
    return page("checkpoints/checkpoint.html", visitor, path=path, found=found, problem=problem)


@ROUTER.get("/versions")
async def show_versions(
    visitor: Visiting,
    request: Request,
    serving: Serving,
    path: Annotated[str, Query(min_length=1, max_length=4096)],
) -> Response:
    """Shows the versions of weights in a folder, or the tensors that one delta changes, or the reason for an error."""
    found, problem = await shown_answer(request, serving, questions.versions, visitor.caller, path)
    versions = found["versions"] if found else []
    is_one = [one["name"] for one in versions] == [path.rpartition("/")[2]]
    delta = versions[0] if is_one else None
    tensors = sorted(delta["tensors"], key=lambda t: -t["stored_bytes"]) if delta else []
    return page(
        "checkpoints/versions.html",
        visitor,
        path=path,
        versions=versions,
        delta=delta,
        tensors=tensors[:MOST_TENSORS],
        problem=problem,
    )


async def shown_answer(
    request: Request, serving: Services, ask: Callable[..., Question], *about: Any
) -> tuple[dict[str, Any] | None, ProblemError | None]:
    """The answer to a question, or the problem that the page shows in its place."""
    try:
        question = await serving.find(ask, *about)
        return json.loads(await answer_to(request, serving, question)), None
    except ProblemError as refused:
        return None, refused


MOST_CHOICES = 100
MOST_OF_A_RUN = 5
"""Limit of the newest steps of one training run."""

MOST_SECONDS = 0.5
"""Time limit for all roots; further checkpoints can be typed, or found by browsing."""

PATIENCE_SECONDS = 2.0
"""Seconds after which the page shows no choices: the storage hangs, or other requests wait for it."""


_NO_TIME = datetime.min.replace(tzinfo=UTC)
"""Of checkpoints in buckets, which come last."""


async def sources(serving: Services, caller: Caller) -> list[str]:
    """Paths, the last changed first; none if the storage does not answer."""
    with move_on_after(PATIENCE_SECONDS):
        return await run_sync(
            newest_sources, serving, caller, limiter=serving.browsers, abandon_on_cancel=True
        )
    return []


def newest_sources(serving: Services, caller: Caller) -> list[str]:
    """Like ``sources``, without a time limit."""
    readable = sorted(root for root in serving.settings.roots if caller.may_read(root))
    found: list[FoundCheckpoint] = []
    for root in readable:
        with suppress(ProblemError):  # the page of the root shows the reason
            folder = serving.roots.folder(caller, root, "")
            seconds = MOST_SECONDS / len(readable)
            look = partial(browse, folder, root, MOST_CHOICES, most_seconds=seconds)
            found += serving.roots.ask(root, look, PATIENCE_SECONDS).checkpoints
    found.sort(key=lambda checkpoint: checkpoint.modified_at or _NO_TIME, reverse=True)
    paths = [path for checkpoint in found for path in _paths(checkpoint)]
    return paths[:MOST_CHOICES]


def _paths(checkpoint: FoundCheckpoint) -> Iterator[str]:
    for folder in reversed((checkpoint.folders or [])[-MOST_OF_A_RUN:]):
        yield f"{checkpoint.path}/{folder}"
    if checkpoint.kind != "steps":
        yield checkpoint.path
