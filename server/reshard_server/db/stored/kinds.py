"""Contents that are stored by name: layouts and maps. Both have versions, owners and quotas, in one table each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from reshard.errors import LayoutError
from reshard_server.db.tables import LAYOUTS, MAPS


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of content that is stored by name.

    Attributes:
        noun: its name, which is also that of the column with the content and of the member in requests.
        table: every version of every name.
        instead: the alternatives to a stored name in a request.
        may_be_text: True if content may be text, which has a line end; then a name has none.
    """

    noun: str
    table: sa.Table
    instead: str
    may_be_text: bool = False

    @property
    def c(self) -> sa.ColumnCollection[str, sa.ColumnElement[Any]]:
        """The columns of the table."""
        return self.table.c

    @property
    def content(self) -> sa.ColumnElement[Any]:
        """The column with the content."""
        return self.table.c[self.noun]

    def name_in(self, value: object) -> str | None:
        """The name in a request's member, perhaps with a version; None for content."""
        is_name = isinstance(value, str) and not (self.may_be_text and "\n" in value)
        return str(value) if is_name else None

    def not_stored(self, text: str) -> LayoutError:
        """The error for a name that is not stored."""
        return LayoutError(
            f"the {self.noun} {text[:200]!r} is not stored; store it, or give {self.instead}"
        )


LAYOUT = StoredKind("layout", LAYOUTS, "the layout's content")
MAP = StoredKind(
    "map",
    MAPS,
    "the map's content, as an object or as text of several lines, or the name of a recipe",
    may_be_text=True,
)
KINDS = (LAYOUT, MAP)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a name.

    Attributes:
        content: None if a listing leaves it out.
        bytes: the size of the content; None if it was not asked for.
    """

    name: str
    version: int
    created_at: datetime
    created_by: str
    content: Any = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class VersionList:
    """Some versions, and the token of the next page; None on the last page."""

    versions: list[StoredVersion]
    next_page_token: str | None
