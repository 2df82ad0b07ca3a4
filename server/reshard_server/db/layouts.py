"""Named layouts in the records: every version is kept, and version numbers are never used again.

Deleted versions can no longer be requested, but a conversion that was accepted with one is still carried out with it.
A name that is stored again after it was deleted continues its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.rows import moment
from reshard_server.db.documents import bytes_of, canonical_text, stored_bytes
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.db.quotas import check_layout
from reshard_server.db.tables import CONVERSIONS, LAYOUTS
from reshard_server.db.used_layouts import lock_use, not_stored, version_number
from reshard_server.errors.problems import FORBIDDEN, PRECONDITION, ProblemError
from reshard_server.schemas.layout import LayoutPage, ListedLayout, StoredLayout, VersionPage
from reshard_server.settings import Settings

LISTED_BYTES = 4096
"""Listings leave larger contents out."""

TRIES = 5
"""How often a change is tried if another one is faster."""

Expected = Callable[[StoredLayout | None], bool]
"""Returns whether the current version is the one that the client expects."""

_L = LAYOUTS.c


def put(
    db: sa.Engine,
    name: str,
    layout: dict[str, Any],
    *,
    token: str,
    is_admin: bool,
    expected: Expected,
    settings: Settings | None = None,
) -> tuple[StoredLayout, bool]:
    """Stores a new version, unless the newest has this content; returns the version and whether it is new.

    Args:
        settings: their quotas apply; None for no quotas.

    Raises ProblemError if the current version is not the expected one, the layout belongs to another token, or a
    quota is used up.
    """
    for left in reversed(range(TRIES)):
        try:
            with db.begin() as connection:
                return _put(connection, name, layout, token, is_admin, expected, settings)
        except sa.exc.IntegrityError:  # another writer stored this version first
            if not left:
                raise
    raise AssertionError


def _put(
    connection: sa.Connection,
    name: str,
    layout: dict[str, Any],
    token: str,
    is_admin: bool,
    expected: Expected,
    settings: Settings | None,
) -> tuple[StoredLayout, bool]:
    now = _newest(connection, name)
    _check(name, now, token, is_admin, expected)
    if now is not None and canonical_text(now.layout) == canonical_text(layout):
        return now, False
    last = connection.scalar(sa.select(sa.func.max(_L.version)).where(_L.name == name)) or 0
    nbytes = stored_bytes(layout)
    if settings is not None:
        check_layout(connection, settings, token, name, nbytes)
    row = {"name": name, "version": last + 1, "layout": layout, "token": token, "bytes": nbytes}
    connection.execute(
        LAYOUTS.insert().values(**row, created_at=clock_of(connection).now(), deleted=False)
    )
    made = sa.select(LAYOUTS).where(_L.name == name, _L.version == last + 1)
    return _stored(connection.execute(made).one()), True


def get(db: sa.Engine, text: str) -> StoredLayout | None:
    """The layout ``name`` (its newest version) or ``name@version``; None if it does not exist or was deleted."""
    name, at, version = text.partition("@")
    with db.connect() as connection:
        return _newest(connection, name, version_number(version) if at else None)


def delete(
    db: sa.Engine, name: str, *, token: str, is_admin: bool, expected: Expected
) -> StoredLayout | None:
    """Deletes every version; returns the newest one, None if there was none.

    Raises ProblemError like ``put``.
    """
    with db.begin() as connection:
        now = _newest(connection, name)
        if now is None:
            return None
        _check(name, now, token, is_admin, expected)
        connection.execute(
            LAYOUTS.update().where(_L.name == name, _L.version <= now.version).values(deleted=True)
        )
        _empty_unused(connection, name)
    return now


def _empty_unused(connection: sa.Connection, name: str) -> None:
    """Drops the contents of deleted versions unless a conversion names the layout; keeps their numbers."""
    lock_use(connection, shared=False)
    request = sa.cast(CONVERSIONS.c.request, sa.Text)
    named = sa.or_(request.contains(f'"{name}@'), request.contains(f'"{name}"'))
    is_used = sa.select(CONVERSIONS.c.id).where(CONVERSIONS.c.state != "succeeded", named).limit(1)
    if connection.scalar(is_used) is None:
        gone = LAYOUTS.update().where(_L.name == name, _L.deleted.is_(True))
        connection.execute(gone.values(layout=None, bytes=0))


def _check(
    name: str, now: StoredLayout | None, token: str, is_admin: bool, expected: Expected
) -> None:
    if not expected(now):
        there = "there is none" if now is None else f"it has version {now.version}"
        raise ProblemError(
            PRECONDITION,
            f"the layout {name!r} is not as the request expects: {there}; read it again, and send the request with "
            "its ETag",
        )
    _check_owner(name, now, token, is_admin)


def check_owner(db: sa.Engine, name: str, *, token: str, is_admin: bool) -> None:
    """Raises ProblemError if a layout belongs to another token."""
    with db.connect() as connection:
        _check_owner(name, _newest(connection, name), token, is_admin)


def _check_owner(name: str, now: StoredLayout | None, token: str, is_admin: bool) -> None:
    if now is not None and now.created_by != token and not is_admin:
        raise ProblemError(
            FORBIDDEN,
            f"the layout {name!r} belongs to another token, so this one may not change it; take another name, or ask an admin",
        )


def page(db: sa.Engine, prefix: str | None, page_size: int, token: str | None = None) -> LayoutPage:
    """The newest version of each layout, by name. Raises ProblemError for the page token of another listing."""
    listing = {"layouts": prefix}
    newest = (
        sa.select(_L.name, sa.func.max(_L.version).label("version"))
        .where(_L.deleted.is_(False))
        .group_by(_L.name)
        .subquery()
    )
    query = sa.select(*_listed_columns(db)).join(
        newest, (_L.name == newest.c.name) & (_L.version == newest.c.version)
    )
    if prefix:
        query = query.where(_L.name.startswith(prefix, autoescape=True))
    if token:
        query = query.where(_L.name > page_key(listing, token, (str,))[0])
    with db.connect() as connection:
        rows = connection.execute(query.order_by(_L.name).limit(page_size + 1)).all()
    more = page_token(listing, (rows[page_size - 1].name,)) if len(rows) > page_size else None
    return LayoutPage(layouts=list(map(_listed, rows[:page_size])), next_page_token=more)


def versions(
    db: sa.Engine, name: str, page_size: int, token: str | None = None
) -> VersionPage | None:
    """All versions of a layout, newest first; None if there is no such layout."""
    listing = {"versions": name}
    query = sa.select(*_listed_columns(db)).where(_L.name == name, _L.deleted.is_(False))
    if token:
        query = query.where(_L.version < page_key(listing, token, (int,))[0])
    with db.connect() as connection:
        rows = connection.execute(query.order_by(_L.version.desc()).limit(page_size + 1)).all()
    if not rows and not token:
        return None
    more = page_token(listing, (rows[page_size - 1].version,)) if len(rows) > page_size else None
    return VersionPage(versions=list(map(_listed, rows[:page_size])), next_page_token=more)


def _listed_columns(db: sa.Engine) -> list[sa.ColumnElement[Any]]:
    """The columns of a listing; large contents stay in the database."""
    size = sa.func.coalesce(_L.bytes, bytes_of(db, _L.layout))
    content = sa.case((size <= LISTED_BYTES, _L.layout), else_=sa.null()).label("layout")
    return [_L.name, _L.version, _L.token, _L.created_at, size.label("bytes"), content]


def _listed(row: sa.Row[Any]) -> ListedLayout:
    return ListedLayout(
        name=row.name,
        version=row.version,
        layout=row.layout,
        bytes=row.bytes,
        created_at=moment(row.created_at),
        created_by=row.token,
    )


def layout_content(db: sa.Engine, text: str) -> dict[str, Any]:
    """The content of ``name`` (its newest version) or ``name@version`` now.

    Raises LayoutError if it does not exist or was deleted.
    """
    found = get(db, text)
    if found is None:
        raise not_stored(text)
    return found.layout


def _newest(
    connection: sa.Connection, name: str, version: int | None = None
) -> StoredLayout | None:
    query = sa.select(LAYOUTS).where(_L.name == name, _L.deleted.is_(False))
    if version is not None:
        query = query.where(_L.version == version)
    row = connection.execute(query.order_by(_L.version.desc()).limit(1)).one_or_none()
    return None if row is None else _stored(row)


def _stored(row: sa.Row[Any]) -> StoredLayout:
    return StoredLayout(
        name=row.name,
        version=row.version,
        layout=row.layout,
        created_at=moment(row.created_at),
        created_by=row.token,
    )
