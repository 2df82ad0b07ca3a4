"""The sources that a form offers: the newest checkpoints below the visitor's roots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from anyio import move_on_after
from anyio.to_thread import run_sync

from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import ProblemError
from reshard_server.queries.browse import browse
from reshard_server.schemas.checkpoint import FoundCheckpoint
from reshard_server.services import Services

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
            found += _in_root(serving, caller, root, MOST_SECONDS / len(readable))
    found.sort(key=lambda checkpoint: checkpoint.modified_at or _NO_TIME, reverse=True)
    paths = [path for checkpoint in found for path in _paths(checkpoint)]
    return paths[:MOST_CHOICES]


def _in_root(serving: Services, caller: Caller, root: str, seconds: float) -> list[FoundCheckpoint]:
    folder = serving.roots.folder(caller, root, "")
    listed = serving.roots.ask(
        root, lambda: browse(folder, root, MOST_CHOICES, most_seconds=seconds), PATIENCE_SECONDS
    )
    return listed.checkpoints


def _paths(checkpoint: FoundCheckpoint) -> Iterator[str]:
    for folder in reversed((checkpoint.folders or [])[-MOST_OF_A_RUN:]):
        yield f"{checkpoint.path}/{folder}"
    if checkpoint.kind != "steps":
        yield checkpoint.path
