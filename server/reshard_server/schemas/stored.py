"""What the documents of stored layouts and maps have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from pydantic import Field

from reshard_server.schemas.base import Answer, Name

LEFT_OUT: Any = Field(
    None,
    description="The content; null if it is larger than 4096 bytes: get it by its name.",
)
"""The content in a listing."""


class Found(Protocol):
    """A version in the records; ``db.stored.kinds`` has them."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def created_at(self) -> datetime: ...

    @property
    def created_by(self) -> str: ...

    @property
    def content(self) -> Any: ...

    @property
    def bytes(self) -> Any: ...


class Version(Answer):
    """One version of a name; versions count from 1."""

    name: Name
    version: int
    created_at: datetime
    created_by: str


class ListedVersion(Version):
    """One version of a name in a listing."""

    bytes: int = Field(description="Size of the content.")


def facts_of(found: Found) -> dict[str, Any]:
    """The members that every version has."""
    return {name: getattr(found, name) for name in Version.model_fields}
