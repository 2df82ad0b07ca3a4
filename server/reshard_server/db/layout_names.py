"""Names and versions of layouts without their contents, which could be hundreds of megabytes per page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from reshard_server.db.conversions.rows import moment
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.db.tables import LAYOUTS

_L = LAYOUTS.c


@dataclass(frozen=True, slots=True)
class LayoutVersion:
    """One version of a layout, without its content."""

    name: str
    version: int
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class VersionList:
    """Some versions, and the token of the next page; None on the last page."""

    versions: list[LayoutVersion]
    next_page_token: str | None


def newest(db: sa.Engine, page_size: int, token: str | None = None) -> VersionList:
    """The newest version of each layout, by name. Raises ProblemError for the page token of another listing."""
    listing = "layout names"
    last = (
        sa.select(_L.name, sa.func.max(_L.version).label("version"))
        .where(_L.deleted.is_(False))
        .group_by(_L.name)
    )
    if token:
        last = last.where(_L.name > page_key(listing, token, (str,))[0])
    names = last.order_by(_L.name).limit(page_size + 1).subquery()
    query = (
        sa.select(_L.name, _L.version, _L.created_at, _L.token)
        .join(names, (_L.name == names.c.name) & (_L.version == names.c.version))
        .order_by(_L.name)
    )
    rows = _rows(db, query)
    more = page_token(listing, (rows[page_size - 1].name,)) if len(rows) > page_size else None
    return VersionList(list(map(_version, rows[:page_size])), more)


def versions(db: sa.Engine, name: str, page_size: int, token: str | None = None) -> VersionList:
    """The versions of a layout that were not deleted, newest first; none if there is no such layout."""
    listing = {"layout versions": name}
    query = sa.select(_L.name, _L.version, _L.created_at, _L.token).where(
        _L.name == name, _L.deleted.is_(False)
    )
    if token:
        query = query.where(_L.version < page_key(listing, token, (int,))[0])
    rows = _rows(db, query.order_by(_L.version.desc()).limit(page_size + 1))
    more = page_token(listing, (rows[page_size - 1].version,)) if len(rows) > page_size else None
    return VersionList(list(map(_version, rows[:page_size])), more)


def _rows(db: sa.Engine, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    with db.connect() as connection:
        return list(connection.execute(query).all())


def _version(row: sa.Row[Any]) -> LayoutVersion:
    return LayoutVersion(row.name, row.version, moment(row.created_at), row.token)
