"""Checkpoints that a form offers as its source: the newest below the roots that the visitor may read."""

from __future__ import annotations

from collections.abc import Iterator

from reshard_server.access.tokens import Caller
from reshard_server.models.checkpoint import FoundCheckpoint
from reshard_server.services import Services
from reshard_server.work.browsing import browse

MOST_CHOICES = 100
MOST_OF_A_RUN = 5
"""Steps of one training run, the newest ones."""

MOST_SECONDS = 0.5
"""For all roots together; what is not found by then can be typed, or found by browsing."""


def sources(serving: Services, caller: Caller) -> list[str]:
    """Paths, those that changed last first."""
    readable = sorted(root for root in serving.settings.roots if caller.may_read(root))
    found: list[FoundCheckpoint] = []
    for root in readable:
        folder = serving.roots.folder(caller, root, "")
        seconds = MOST_SECONDS / len(readable)
        found += browse(folder, root, MOST_CHOICES, most_seconds=seconds).checkpoints
    found.sort(key=lambda checkpoint: checkpoint.modified_at, reverse=True)
    paths = [path for checkpoint in found for path in _paths(checkpoint)]
    return paths[:MOST_CHOICES]


def _paths(checkpoint: FoundCheckpoint) -> Iterator[str]:
    if checkpoint.kind != "steps":
        yield checkpoint.path
        return
    for folder in reversed((checkpoint.folders or [])[-MOST_OF_A_RUN:]):
        yield f"{checkpoint.path}/{folder}"
