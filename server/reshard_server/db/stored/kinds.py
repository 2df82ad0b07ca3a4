"""Kinds of contents that are stored by name, layouts, maps and views; and the versions that conversions use.

All have versions, owners and quotas, in one table each. A version of a layout or a map is pinned when a conversion is accepted, and kept
for it after a deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar

import sqlalchemy as sa

from reshard.errors import LayoutError
from reshard.maps.read_map import recipe_names
from reshard_server.db.tables import LAYOUTS, MAPS, VIEWS
from reshard_server.schemas.conversion import (
    JobRequest,
    OneDelta,
    OneTarget,
    SeveralTargets,
    TargetRequest,
    targets_of,
)


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of content that is stored by name.

    Attributes:
        noun: its name, which is also that of the column with the content and of the member in requests.
        table: every version of every name.
        instead: the alternatives to a stored name in a request.
        may_be_text: True if content may be text, which has a line end; then a name has none.
        paths: members of the content that name paths below roots; only callers who may read all of these roots learn of a version.
    """

    noun: str
    table: sa.Table
    instead: str
    may_be_text: bool = False
    paths: tuple[str, ...] = ()

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

    def roots(self, content: Mapping[str, Any]) -> frozenset[str]:
        """The roots that content names."""
        named = (content.get(member) or () for member in self.paths)
        texts = chain.from_iterable([each] if isinstance(each, str) else each for each in named)
        return frozenset(text.partition("/")[0] for text in texts)

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
"""Those that conversions name."""

VIEW = StoredKind("view", VIEWS, "its content", paths=("source", "config", "lora", "quantize_like"))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a name.

    Attributes:
        content: None if a listing leaves it out.
        bytes: the size of the content; None if it was not asked for.
        roots: that the content names.
    """

    name: str
    version: int
    created_at: datetime
    created_by: str
    content: Any = None
    bytes: int | None = None
    roots: frozenset[str] = frozenset()

    def is_for(self, may_read: Callable[[str], bool]) -> bool:
        """True if a caller with these rights may learn of it."""
        return all(map(may_read, self.roots))


@dataclass(frozen=True, slots=True)
class VersionList:
    """Some versions, and the token of the next page; None on the last page."""

    versions: list[StoredVersion]
    next_page_token: str | None


LARGEST_VERSION = 2**31 - 1
USE_KEY = 7_265_736_861_726_403
"""PostgreSQL's advisory lock between transactions that use stored contents and those that drop them."""

Pins = Mapping[str, Mapping[str, str]]
"""The newest ``name@version`` of each name, by kind."""


def pin_stored(connection: sa.Connection, requests: Sequence[JobRequest]) -> list[JobRequest]:
    """The requests with each stored name replaced by ``name@version``, the newest version now.

    So a conversion is carried out with the version that it shows. An unknown name stays as it is.
    """
    named = {
        kind: {name for r in requests for each in targets_of(r) if (name := _name(kind, each))}
        for kind in KINDS
    }
    if any(named.values()):
        lock_use(connection, shared=True)
    pins = {kind.noun: _newest(connection, kind, names) for kind, names in named.items()}
    return (
        [_pinned(request, pins) for request in requests] if any(pins.values()) else list(requests)
    )


def _name(kind: StoredKind, requested: TargetRequest | OneDelta) -> str | None:
    return kind.name_in(getattr(requested, kind.noun, None))


def _newest(connection: sa.Connection, kind: StoredKind, names: set[str]) -> dict[str, str]:
    unpinned = {name for name in names if "@" not in name}
    if not unpinned:
        return {}
    newest = (
        sa.select(kind.c.name, sa.func.max(kind.c.version).label("version"))
        .where(kind.c.name.in_(unpinned), kind.c.deleted.is_(False))
        .group_by(kind.c.name)
    )
    return {row.name: f"{row.name}@{row.version}" for row in connection.execute(newest)}


def _pinned(request: JobRequest, pins: Pins) -> JobRequest:
    if isinstance(request, SeveralTargets):
        targets = tuple(_with_pins(requested, pins) for requested in request.targets)
        return request.model_copy(update={"targets": targets})
    if isinstance(request, OneDelta):  # one branch for each type that mypy must tell apart
        return _with_pins(request, pins)
    return _with_pins(request, pins)


G = TypeVar("G", TargetRequest, OneTarget, OneDelta)


def _with_pins(requested: G, pins: Pins) -> G:
    found = {kind.noun: pins[kind.noun].get(_name(kind, requested) or "") for kind in KINDS}
    update = {noun: pin for noun, pin in found.items() if pin is not None}
    return requested.model_copy(update=update) if update else requested


def lock_use(connection: sa.Connection, *, shared: bool) -> None:
    """Until the end of the transaction, keeps accepting conversions and dropping contents apart.

    Args:
        shared: for accepting; several may do that at once.
    """
    if connection.dialect.name == "postgresql":
        lock = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
        connection.execute(sa.select(lock(USE_KEY)))


def content_then(db: sa.Engine, kind: StoredKind, value: Any, as_of: float) -> Any:
    """The content of a kind for a conversion that was accepted at the time ``as_of``.

    A name is ``name@version``, or the version of ``name`` that was newest then. A version that was deleted since is still
    used, because the conversion was accepted with it. Records of 0.1.0 name no version. A map without a version is a
    recipe, if there is one of its name. Content is returned as it is.

    Raises LayoutError if no such version was ever stored.
    """
    text = kind.name_in(value)
    if text is None or is_recipe(kind, text):
        return value
    name, at, version = text.partition("@")
    chosen = kind.c.version == version_number(version) if at else kind.c.created_at <= as_of
    query = sa.select(kind.content).where(kind.c.name == name, chosen)
    with db.connect() as connection:
        found = connection.execute(query.order_by(kind.c.version.desc()).limit(1)).scalar()
    if found is None:
        raise kind.not_stored(text)
    return found


def is_recipe(kind: StoredKind, name: str) -> bool:
    """True if a name is that of a recipe, which comes with the library."""
    return kind is MAP and name in recipe_names()


def version_number(text: str) -> int:
    """A version's number; 0, which no version has, for text that is not a number."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 10
    return min(int(text), LARGEST_VERSION) if is_number else 0
