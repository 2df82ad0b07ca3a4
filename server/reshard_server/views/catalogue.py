"""Catalogue: the views that the faces show, kept by a server's records, or by the command ``reshard view``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reshard import CheckpointView
from reshard_server.auth.tokens import Caller
from reshard_server.views.byte_stream import ByteStream

NAMESPACE = "views"
"""The owner of every view in the Hugging Face face, and the bucket of every view in the S3 face."""

MAIN = "main"
"""The revision of the newest finished step."""


@dataclass(frozen=True)
class ServedView:
    """One revision of a view, planned.

    Attributes:
        commit: the id of the revision, 40 hex digits.
        modified: seconds since the epoch, of the source's step.
        paths: of the source, and of what is read besides, as clients name them.
    """

    name: str
    commit: str
    view: CheckpointView
    modified: float
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """The secret of an access key of the S3 face, and its caller."""

    secret: str
    caller: Caller


class Catalogue(Protocol):
    """The views that a caller may read. ProblemErrors name the client's paths only."""

    async def names(self, caller: Caller) -> Sequence[str]:
        """The names of the views whose sources the caller may read, sorted."""
        ...

    async def find(self, caller: Caller, name: str, revision: str = MAIN) -> ServedView:
        """A revision of a view, planned now if it was not.

        Args:
            revision: ``main``, or an id of 40 hex digits.

        Raises ProblemError: 404 (NOT_FOUND) for a view or a revision that never was, or that the caller may not read; 410 (GONE) for a
        revision whose source is gone; 409 for a source that cannot give the view, with the plan's text.
        """
        ...

    async def send(
        self, caller: Caller, served: ServedView, path: str, start: int, stop: int, status: int, headers: dict[str, str]
    ) -> ByteStream:  # fmt: skip
        """The answer with bytes ``start:stop`` of a file; its first bytes are read before it is returned.

        Raises ProblemError: 409 (CHANGED) where the source was changed since the view was planned, 410 where it is gone, 429 for too many
        streams of this caller, and those of a storage that cannot be read.
        """
        ...

    async def key(self, access_key: str) -> Key | None:
        """The secret of an access key; None for an unknown one, or one that has expired."""
        ...
