"""Named layouts: stored once and used by name; every version is kept."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    MissingAxes,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
)
from reshard_server.schemas.stored import LEFT_OUT, Found, ListedVersion, Version, facts_of


class LayoutBody(RequestDocument):
    """The content of a layout file (docs/reference/layout-files.md), as an object."""

    layout: dict[str, Any] = Field(
        examples=[{"mesh": {"axes": ["model"], "shape": [8]}, "rules": []}]
    )


class StoredLayout(Version):
    """One version of a named layout; versions count from 1."""

    layout: dict[str, Any]

    @classmethod
    def of(cls, found: Found) -> StoredLayout:
        """The document of a version."""
        return cls(layout=found.content, **facts_of(found))


class ListedLayout(ListedVersion):
    """One version of a named layout in a listing."""

    layout: dict[str, Any] | None = LEFT_OUT

    @classmethod
    def of(cls, found: Found) -> ListedLayout:
        """The document of a version in a listing."""
        return cls(layout=found.content, bytes=found.bytes, **facts_of(found))


class LayoutPage(Answer):
    """The newest version of each layout, by name."""

    layouts: list[ListedLayout]
    next_page_token: str | None = None


class VersionPage(Answer):
    """All versions of one layout, newest first."""

    versions: list[ListedLayout]
    next_page_token: str | None = None


class PreviewRequest(CheckpointChoice, UnlistedChoice):
    """A layout to try on a checkpoint, without a conversion."""

    checkpoint: RootedPath
    layout: str | dict[str, Any] | None = None
    mesh: str | None = Field(None, max_length=1000)
    missing_axes: MissingAxes = "error"
