"""Named layouts: stored once and used by name; every version is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    MissingAxes,
    Name,
    Page,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
)


class LayoutBody(RequestDocument):
    """The content of a layout file (docs/reference/layout-files.md), as an object."""

    layout: dict[str, Any] = Field(
        examples=[{"mesh": {"axes": ["model"], "shape": [8]}, "rules": []}]
    )


class StoredLayout(Answer):
    """One version of a named layout; versions count from 1."""

    name: Name
    version: int
    layout: dict[str, Any]
    created_at: datetime
    created_by: str


class ListedLayout(Answer):
    """One version of a named layout in a listing."""

    name: Name
    version: int
    layout: dict[str, Any] | None = Field(
        None,
        description="The content; null if it is larger than 4096 bytes: get the layout by its name.",
    )
    bytes: int = Field(description="Size of the content.")
    created_at: datetime
    created_by: str


class LayoutPage(Answer):
    """The newest version of each layout, by name."""

    layouts: list[ListedLayout]
    next_page_token: str | None = None


class VersionPage(Answer):
    """All versions of one layout, newest first."""

    versions: list[ListedLayout]
    next_page_token: str | None = None


class LayoutQuery(Page):
    """The query of a listing of layouts."""

    prefix: str | None = Field(None, max_length=128, description="Beginning of the name.")


class PreviewRequest(CheckpointChoice, UnlistedChoice):
    """A layout to try on a checkpoint, without a conversion."""

    checkpoint: RootedPath
    layout: str | dict[str, Any] | None = None
    mesh: str | None = Field(None, max_length=1000)
    missing_axes: MissingAxes = "error"
