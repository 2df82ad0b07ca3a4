"""Named layouts in the records: every version is kept, and version numbers are never used again.

Deleted versions can no longer be requested, but a conversion that was accepted with one is still carried out with it.
A name that is stored again after it was deleted continues its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from reshard.errors import LayoutError
from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.rows import moment
from reshard_server.db.documents import bytes_of, canonical_text, stored_bytes
from reshard_server.db.page_tokens import page_key, page_token
from reshard_server.db.quotas import check_layout
from reshard_server.db.tables import CONVERSIONS, LAYOUTS
from reshard_server.errors.problems import FORBIDDEN, PRECONDITION, ProblemError
from reshard_server.schemas.conversion import (
    ConversionRequest,
    SeveralTargets,
    TargetRequest,
    targets_of,
)
from reshard_server.schemas.layout import LayoutPage, ListedLayout, StoredLayout, VersionPage
from reshard_server.settings import Settings

LARGEST_VERSION = 2**31 - 1
USE_KEY = 7_265_736_861_726_403
"""PostgreSQL's advisory lock between transactions that use a layout and those that drop its content."""

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
        return _newest(connection, name, _number(version) if at else None)


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


def _lock_use(connection: sa.Connection, *, shared: bool) -> None:
    """Until the end of the transaction, keeps accepting conversions and dropping contents apart.

    Args:
        shared: for accepting; several may do that at once.
    """
    if connection.dialect.name == "postgresql":
        lock = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
        connection.execute(sa.select(lock(USE_KEY)))


def _empty_unused(connection: sa.Connection, name: str) -> None:
    """Drops the contents of deleted versions unless a conversion names the layout; keeps their numbers."""
    _lock_use(connection, shared=False)
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


def pin_layouts(
    connection: sa.Connection, requests: Sequence[ConversionRequest]
) -> list[ConversionRequest]:
    """The requests with each layout's name replaced by ``name@version``, the newest version now.

    So a conversion is carried out with the version that it shows. An unknown name stays as it is.
    """
    names = {
        layout for request in requests for layout in map(_unpinned, targets_of(request)) if layout
    }
    if any(
        isinstance(requested.layout, str)
        for request in requests
        for requested in targets_of(request)
    ):
        _lock_use(connection, shared=True)
    query = sa.select(_L.name, sa.func.max(_L.version).label("version"))
    newest = query.where(_L.name.in_(names), _L.deleted.is_(False)).group_by(_L.name)
    rows = connection.execute(newest) if names else ()
    pins = {row.name: f"{row.name}@{row.version}" for row in rows}
    return [_pinned(request, pins) for request in requests] if pins else list(requests)


def _unpinned(requested: TargetRequest) -> str | None:
    """The layout's name, if the request names no version."""
    is_name = isinstance(requested.layout, str) and "@" not in requested.layout
    return str(requested.layout) if is_name else None


def _pinned(request: ConversionRequest, pins: Mapping[str, str]) -> ConversionRequest:
    if isinstance(request, SeveralTargets):
        targets = tuple(_with_pin(requested, pins) for requested in request.targets)
        return request.model_copy(update={"targets": targets})
    return _with_pin(request, pins)


G = TypeVar("G", bound=TargetRequest)


def _with_pin(requested: G, pins: Mapping[str, str]) -> G:
    pin = pins.get(_unpinned(requested) or "")
    return requested if pin is None else requested.model_copy(update={"layout": pin})


def layout_content(db: sa.Engine, text: str) -> dict[str, Any]:
    """The content of ``name`` (its newest version) or ``name@version`` now.

    Raises LayoutError if it does not exist or was deleted.
    """
    found = get(db, text)
    if found is None:
        raise _not_stored(text)
    return found.layout


def stored_layout(db: sa.Engine, text: str, as_of: float) -> dict[str, Any]:
    """The content of ``name@version``, or of the version of ``name`` that was newest at the time ``as_of``.

    A version that was deleted since is still used, because the conversion was accepted with it. Records of 0.1.0 name
    no version. Raises LayoutError if no such version was ever stored.
    """
    name, at, version = text.partition("@")
    chosen = _L.version == _number(version) if at else _L.created_at <= as_of
    query = sa.select(_L.layout).where(_L.name == name, chosen).order_by(_L.version.desc()).limit(1)
    with db.connect() as connection:
        found: dict[str, Any] | None = connection.execute(query).scalar()
    if found is None:
        raise _not_stored(text)
    return found


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


def _number(text: str) -> int:
    """A version's number; 0, which no version has, for text that is not a number."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 10
    return min(int(text), LARGEST_VERSION) if is_number else 0


def _not_stored(text: str) -> LayoutError:
    return LayoutError(
        f"the layout {text[:200]!r} is not stored; store it, or give the layout's content"
    )
