"""Named maps: stored once and used by name; every version is kept."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from reshard_server.schemas.base import Answer, RequestDocument
from reshard_server.schemas.stored import LEFT_OUT, Found, ListedVersion, Version, facts_of


class MapBody(RequestDocument):
    """The content of a map file (docs/reference/maps.md), as an object or as its text of several lines."""

    map: str | dict[str, Any] = Field(
        examples=[{"map": [{"from": "params/kernel", "to": "weight", "shape": "e f -> f e"}]}]
    )


class StoredMap(Version):
    """One version of a named map, as it was sent; versions count from 1."""

    map: str | dict[str, Any]

    @classmethod
    def of(cls, found: Found) -> StoredMap:
        """The document of a version."""
        return cls(map=found.content, **facts_of(found))


class ListedMap(ListedVersion):
    """One version of a named map in a listing."""

    map: str | dict[str, Any] | None = LEFT_OUT

    @classmethod
    def of(cls, found: Found) -> ListedMap:
        """The document of a version in a listing."""
        return cls(map=found.content, bytes=found.bytes, **facts_of(found))


class MapPage(Answer):
    """The newest version of each map, by name."""

    maps: list[ListedMap]
    next_page_token: str | None = None


class MapVersionPage(Answer):
    """All versions of one map, newest first."""

    versions: list[ListedMap]
    next_page_token: str | None = None
