"""The layouts that conversions use: pinned when they are accepted, and kept for them after a deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from reshard.errors import LayoutError
from reshard_server.db.tables import LAYOUTS
from reshard_server.schemas.conversion import (
    ConversionRequest,
    SeveralTargets,
    TargetRequest,
    targets_of,
)

LARGEST_VERSION = 2**31 - 1
USE_KEY = 7_265_736_861_726_403
"""PostgreSQL's advisory lock between transactions that use a layout and those that drop its content."""

_L = LAYOUTS.c


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
        lock_use(connection, shared=True)
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


def lock_use(connection: sa.Connection, *, shared: bool) -> None:
    """Until the end of the transaction, keeps accepting conversions and dropping contents apart.

    Args:
        shared: for accepting; several may do that at once.
    """
    if connection.dialect.name == "postgresql":
        lock = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
        connection.execute(sa.select(lock(USE_KEY)))


def stored_layout(db: sa.Engine, text: str, as_of: float) -> dict[str, Any]:
    """The content of ``name@version``, or of the version of ``name`` that was newest at the time ``as_of``.

    A version that was deleted since is still used, because the conversion was accepted with it. Records of 0.1.0 name
    no version. Raises LayoutError if no such version was ever stored.
    """
    name, at, version = text.partition("@")
    chosen = _L.version == version_number(version) if at else _L.created_at <= as_of
    query = sa.select(_L.layout).where(_L.name == name, chosen).order_by(_L.version.desc()).limit(1)
    with db.connect() as connection:
        found: dict[str, Any] | None = connection.execute(query).scalar()
    if found is None:
        raise not_stored(text)
    return found


def version_number(text: str) -> int:
    """A version's number; 0, which no version has, for text that is not a number."""
    isversion_number = text.isascii() and text.isdecimal() and len(text) <= 10
    return min(int(text), LARGEST_VERSION) if isversion_number else 0


def not_stored(text: str) -> LayoutError:
    """The error for a layout that is not stored."""
    return LayoutError(
        f"the layout {text[:200]!r} is not stored; store it, or give the layout's content"
    )
