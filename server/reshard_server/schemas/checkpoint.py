"""Requests about checkpoints, and their answers."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    Flag,
    Page,
    RootedPath,
    UnlistedChoice,
)
from reshard_server.schemas.conversion import Pairs, Patterns, Size


class CheckpointQuery(Page):
    """The root and the folder to list."""

    root: str = Field(max_length=128, description="Name of a storage root.", examples=["data"])
    prefix: str = Field(
        "",
        max_length=4096,
        description="A folder below the root; only checkpoints in it are listed.",
    )


class CheckpointRequest(CheckpointChoice, UnlistedChoice):
    """One checkpoint."""

    checkpoint: RootedPath


class FingerprintRequest(CheckpointChoice):
    """A checkpoint whose digests are recorded beside its metadata."""

    checkpoint: RootedPath
    overwrite: Flag = Field(False, description="Replace an existing record.")
    max_memory: Size | None = None


class VerifyRequest(CheckpointRequest):
    """A checkpoint to compare with ``other``, or with its own recorded digests.

    ``other`` records the rules by which it was made from ``checkpoint``; rules in the request replace all of them.
    """

    other: RootedPath | None = Field(None, description="Its own path; step and item do not apply.")
    select: Patterns | None = None
    drop: Patterns | None = None
    rename: Pairs | None = Field(None, description="[pattern, replacement] each.")
    cast: Pairs | None = Field(None, description="[pattern, dtype] each.")
    max_memory: Size | None = None


class FoundCheckpoint(Answer):
    """A checkpoint below a root, or the folder of a training run's steps."""

    path: RootedPath
    kind: str = Field(
        description="The checkpoint's format, orbax or safetensors; or steps, for the directory of a training run."
    )
    steps: list[int] | None = Field(default=None, description="Committed steps, ascending.")
    folders: list[str] | None = Field(
        default=None,
        description="The name of each step's folder below the path, in the same order.",
    )
    modified_at: datetime | None = Field(
        description="When the folder last changed; null in a bucket, whose folders have no time."
    )


class CheckpointPage(Answer):
    """Checkpoints by path; a page may be short or empty without being the last."""

    checkpoints: list[FoundCheckpoint]
    next_page_token: str | None = None
