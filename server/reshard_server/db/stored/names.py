"""Listings of stored layouts and maps: names in their newest versions, and the versions of a name.

A page of the API has small contents, a page for people has none: the contents could be hundreds of megabytes per page.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from reshard_server.db.conversions.rows import moment
from reshard_server.db.documents import bytes_of
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.db.stored.kinds import StoredKind, StoredVersion, VersionList

LISTED_BYTES = 4096
"""Listings leave larger contents out."""


def newest(
    db: sa.Engine,
    kind: StoredKind,
    page_size: int,
    token: str | None = None,
    *,
    prefix: str | None = None,
    with_content: bool = False,
) -> VersionList:
    """The newest version of each name, by name. Raises ProblemError for the page token of another listing."""
    listing = {f"{kind.noun}s": prefix}
    last = (
        sa.select(kind.c.name, sa.func.max(kind.c.version).label("version"))
        .where(kind.c.deleted.is_(False))
        .group_by(kind.c.name)
    )
    if prefix:
        last = last.where(kind.c.name.startswith(prefix, autoescape=True))
    if token:
        last = last.where(kind.c.name > page_key(listing, token, (str,))[0])
    names = last.order_by(kind.c.name).limit(page_size + 1).subquery()
    same = (kind.c.name == names.c.name) & (kind.c.version == names.c.version)
    query = sa.select(*_columns(db, kind, with_content)).join(names, same).order_by(kind.c.name)
    rows = _rows(db, query)
    more = page_token(listing, (rows[page_size - 1].name,)) if len(rows) > page_size else None
    return VersionList(list(map(_version, rows[:page_size])), more)


def versions(
    db: sa.Engine,
    kind: StoredKind,
    name: str,
    page_size: int,
    token: str | None = None,
    *,
    with_content: bool = False,
) -> VersionList:
    """The versions of a name that were not deleted, newest first; none if there is no such name."""
    listing = {"versions" if kind.noun == "layout" else f"{kind.noun} versions": name}
    query = sa.select(*_columns(db, kind, with_content)).where(
        kind.c.name == name, kind.c.deleted.is_(False)
    )
    if token:
        query = query.where(kind.c.version < page_key(listing, token, (int,))[0])
    rows = _rows(db, query.order_by(kind.c.version.desc()).limit(page_size + 1))
    more = page_token(listing, (rows[page_size - 1].version,)) if len(rows) > page_size else None
    return VersionList(list(map(_version, rows[:page_size])), more)


def _columns(db: sa.Engine, kind: StoredKind, with_content: bool) -> list[sa.ColumnElement[Any]]:
    """The columns of a listing; large contents stay in the database."""
    size: sa.ColumnElement[Any] = sa.null()
    content: sa.ColumnElement[Any] = sa.null()
    if with_content:
        size = sa.func.coalesce(kind.c.bytes, bytes_of(db, kind.content))
        content = sa.case((size <= LISTED_BYTES, kind.content), else_=sa.null())
    named = [kind.c.name, kind.c.version, kind.c.token, kind.c.created_at]
    return [*named, size.label("bytes"), content.label("content")]


def _rows(db: sa.Engine, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    with db.connect() as connection:
        return list(connection.execute(query).all())


def _version(row: sa.Row[Any]) -> StoredVersion:
    made = moment(row.created_at)
    return StoredVersion(row.name, row.version, made, row.token, row.content, row.bytes)
