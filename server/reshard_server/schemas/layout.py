"""Named layouts: stored once, used by name, every version kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from reshard_server.schemas.base import Answer, Document, MissingAxes, Name, OfRun, Page, RootedPath


class LayoutBody(Document):
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
        description="The content; null where it is larger than 4096 bytes: get it by its name.",
    )
    bytes: int = Field(description="How large the content is.")
    created_at: datetime
    created_by: str


class LayoutPage(Answer):
    """The newest version of each, by name."""

    layouts: list[ListedLayout]
    next_page_token: str | None = None


class VersionPage(Answer):
    """Every version of one layout, newest first."""

    versions: list[ListedLayout]
    next_page_token: str | None = None


class LayoutQuery(Page):
    """Which layouts."""

    prefix: str | None = Field(None, max_length=128, description="Beginning of the name.")


class PreviewRequest(OfRun):
    """A layout on a checkpoint, without converting anything."""

    checkpoint: RootedPath
    layout: str | dict[str, Any] | None = None
    mesh: str | None = Field(None, max_length=1000)
    missing_axes: MissingAxes = "error"
