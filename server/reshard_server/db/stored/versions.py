"""Stored layouts, maps and views in the records: every version is kept, and version numbers are never used again.

Deleted versions can no longer be requested, but a conversion that was accepted with one is still carried out with it.
A name that is stored again after it was deleted continues its numbers.

A page of the API has small contents, a page for people has none: the contents could be hundreds of megabytes per page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.rows import moment
from reshard_server.db.documents import bytes_of, canonical_text, page_key, page_token, stored_bytes
from reshard_server.db.quotas import check_version
from reshard_server.db.stored.kinds import (
    StoredKind,
    StoredVersion,
    VersionList,
    lock_use,
    version_number,
)
from reshard_server.db.tables import CONVERSIONS
from reshard_server.errors.problems import FORBIDDEN, PRECONDITION, ProblemError
from reshard_server.settings import Settings

TRIES = 5
"""Most times that a change is tried if another one is faster."""

Expected = Callable[[StoredVersion | None], bool]
"""Returns whether the current version is the one that the client expects."""


def put(
    db: sa.Engine,
    kind: StoredKind,
    name: str,
    content: Any,
    *,
    token: str,
    is_admin: bool,
    expected: Expected,
    settings: Settings | None = None,
) -> tuple[StoredVersion, bool]:
    """Stores a new version, unless the newest has this content; returns the version, and True if it is new.

    Args:
        settings: their quotas apply; None for no quotas.

    Raises ProblemError if the current version is not the expected one, the name belongs to another token, or a
    quota is used up.
    """
    for left in reversed(range(TRIES)):
        try:
            with db.begin() as connection:
                now = _newest(connection, kind, name)
                _check(connection, kind, name, now, token, is_admin, expected)
                if now is not None and canonical_text(now.content) == canonical_text(content):
                    return now, False
                return _insert(connection, kind, name, content, token, settings), True
        except sa.exc.IntegrityError:  # another writer stored this version first
            if not left:
                raise
    raise AssertionError


def _insert(
    connection: sa.Connection,
    kind: StoredKind,
    name: str,
    content: Any,
    token: str,
    settings: Settings | None,
) -> StoredVersion:
    of_name = kind.c.name == name
    last = connection.scalar(sa.select(sa.func.max(kind.c.version)).where(of_name)) or 0
    nbytes = stored_bytes(content)
    if settings is not None:
        check_version(connection, settings, kind, token, name, nbytes)
    row = {"name": name, "version": last + 1, kind.noun: content, "token": token, "bytes": nbytes}
    connection.execute(
        kind.table.insert().values(**row, created_at=clock_of(connection).now(), deleted=False)
    )
    made = sa.select(kind.table).where(of_name, kind.c.version == last + 1)
    return _stored(kind, connection.execute(made).one())


def get(db: sa.Engine, kind: StoredKind, text: str) -> StoredVersion | None:
    """The version of ``name`` (its newest) or ``name@version``; None if it does not exist or was deleted."""
    name, at, version = text.partition("@")
    with db.connect() as connection:
        return _newest(connection, kind, name, version_number(version) if at else None)


def delete(
    db: sa.Engine, kind: StoredKind, name: str, *, token: str, is_admin: bool, expected: Expected
) -> StoredVersion | None:
    """Deletes every version; returns the newest one, None if there was none.

    Raises ProblemError like ``put``.
    """
    with db.begin() as connection:
        now = _newest(connection, kind, name)
        if now is None:
            return None
        _check(connection, kind, name, now, token, is_admin, expected)
        versions = kind.table.update().where(kind.c.name == name, kind.c.version <= now.version)
        connection.execute(versions.values(deleted=True))
        _empty_unused(connection, kind, name)
    return now


def _empty_unused(connection: sa.Connection, kind: StoredKind, name: str) -> None:
    """Drops the contents of deleted versions unless a conversion has the name; keeps their numbers."""
    lock_use(connection, shared=False)
    request = sa.cast(CONVERSIONS.c.request, sa.Text)
    named = sa.or_(request.contains(f'"{name}@'), request.contains(f'"{name}"'))
    is_used = sa.select(CONVERSIONS.c.id).where(CONVERSIONS.c.state != "succeeded", named).limit(1)
    if connection.scalar(is_used) is None:
        gone = kind.table.update().where(kind.c.name == name, kind.c.deleted.is_(True))
        connection.execute(gone.values({kind.noun: None, "bytes": 0}))


def _check(
    connection: sa.Connection,
    kind: StoredKind,
    name: str,
    now: StoredVersion | None,
    token: str,
    is_admin: bool,
    expected: Expected,
) -> None:
    if not expected(now):
        there = "there is none" if now is None else f"it has version {now.version}"
        raise ProblemError(
            PRECONDITION,
            f"the {kind.noun} {name!r} is not as the request expects: {there}; read it again, and send the request with "
            "its ETag",
        )
    _check_owner(connection, kind, name, token, is_admin)


def check_owner(db: sa.Engine, kind: StoredKind, name: str, *, token: str, is_admin: bool) -> None:
    """Raises ProblemError if a name belongs to another token."""
    with db.connect() as connection:
        _check_owner(connection, kind, name, token, is_admin)


def _check_owner(
    connection: sa.Connection, kind: StoredKind, name: str, token: str, is_admin: bool
) -> None:
    """Raises ProblemError if a name belongs to another token: to that of its first version, even after an admin stored one."""
    kept = (kind.c.name == name, kind.c.deleted.is_(False))
    owner = connection.scalar(
        sa.select(kind.c.token).where(*kept).order_by(kind.c.version).limit(1)
    )
    if owner is not None and owner != token and not is_admin:
        raise ProblemError(
            FORBIDDEN,
            f"the {kind.noun} {name!r} belongs to another token, so this one may not change it; take another name, or ask an admin",
        )


def _newest(
    connection: sa.Connection, kind: StoredKind, name: str, version: int | None = None
) -> StoredVersion | None:
    query = sa.select(kind.table).where(kind.c.name == name, kind.c.deleted.is_(False))
    if version is not None:
        query = query.where(kind.c.version == version)
    row = connection.execute(query.order_by(kind.c.version.desc()).limit(1)).one_or_none()
    return None if row is None else _stored(kind, row)


def _stored(kind: StoredKind, row: sa.Row[Any]) -> StoredVersion:
    made, content = moment(row.created_at), row._mapping[kind.noun]
    roots = kind.roots(content)
    return StoredVersion(row.name, row.version, made, row.token, content, row.bytes, roots)


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
    return VersionList([_version(kind, row) for row in rows[:page_size]], more)


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
    return VersionList([_version(kind, row) for row in rows[:page_size]], more)


def _columns(db: sa.Engine, kind: StoredKind, with_content: bool) -> list[sa.ColumnElement[Any]]:
    """The columns of a listing; large contents stay in the database."""
    size: sa.ColumnElement[Any] = sa.null()
    content: sa.ColumnElement[Any] = sa.null()
    if with_content:
        size = sa.func.coalesce(kind.c.bytes, bytes_of(db, kind.content))
        content = sa.case((size <= LISTED_BYTES, kind.content), else_=sa.null())
    named = [kind.c.name, kind.c.version, kind.c.token, kind.c.created_at]
    paths = [kind.content[member].label(member) for member in kind.paths]
    return [*named, size.label("bytes"), content.label("content"), *paths]


def _rows(db: sa.Engine, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    with db.connect() as connection:
        return list(connection.execute(query).all())


def _version(kind: StoredKind, row: sa.Row[Any]) -> StoredVersion:
    made, roots = moment(row.created_at), kind.roots(dict(row._mapping))
    return StoredVersion(row.name, row.version, made, row.token, row.content, row.bytes, roots)
