"""Layouts and maps: contents stored by name, of which every version is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Protocol, Self

from pydantic import Field

from reshard_server.schemas.base import (
    Answer,
    CheckpointChoice,
    MissingAxes,
    Name,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
)

LEFT_OUT: Any = Field(
    None, description="The content; null if it is larger than 4096 bytes: get it by its name."
)
"""The content in a listing."""


class Found(Protocol):
    """A version in the records, such as ``db.stored.kinds.StoredVersion``."""

    @property
    def content(self) -> Any: ...


class Version(Answer):
    """One version of a name; versions count from 1."""

    content_member: ClassVar[str]

    name: Name
    version: int
    created_at: datetime
    created_by: str

    @classmethod
    def of(cls, found: Found) -> Self:
        """The document of a version."""
        facts = {name: getattr(found, name, None) for name in cls.model_fields}
        return cls(**{**facts, cls.content_member: found.content})


class ListedVersion(Version):
    """One version of a name in a listing."""

    bytes: int = Field(description="Size of the content.")


class LayoutBody(RequestDocument):
    """The content of a layout file (docs/reference/layout-files.md), as an object."""

    layout: dict[str, Any] = Field(
        examples=[{"mesh": {"axes": ["model"], "shape": [8]}, "rules": []}]
    )


class StoredLayout(Version):
    """One version of a named layout; versions count from 1."""

    content_member = "layout"
    layout: dict[str, Any]


class ListedLayout(ListedVersion):
    """One version of a named layout in a listing."""

    content_member = "layout"
    layout: dict[str, Any] | None = LEFT_OUT


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


class MapBody(RequestDocument):
    """The content of a map file (docs/reference/maps.md), as an object or as its text of several lines."""

    map: str | dict[str, Any] = Field(
        examples=[{"map": [{"from": "params/kernel", "to": "weight", "shape": "e f -> f e"}]}]
    )


class StoredMap(Version):
    """One version of a named map, as it was sent; versions count from 1."""

    content_member = "map"
    map: str | dict[str, Any]


class ListedMap(ListedVersion):
    """One version of a named map in a listing."""

    content_member = "map"
    map: str | dict[str, Any] | None = LEFT_OUT


class MapPage(Answer):
    """The newest version of each map, by name."""

    maps: list[ListedMap]
    next_page_token: str | None = None


class MapVersionPage(Answer):
    """All versions of one map, newest first."""

    versions: list[ListedMap]
    next_page_token: str | None = None
