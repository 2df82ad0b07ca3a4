"""JSON documents of the records: their canonical text, those of another version of the server, and page tokens.

A server of the previous or the next version may work on the same records (a rolling upgrade, or a downgrade). Documents
are recorded without members that have their default, so a recorded member was requested. A document with unknown
members is shown without them and stays unchanged in the records; only servers that know all its members carry it out. A
document that this version cannot read is left out of listings.

A page token contains the sort key of the last row of a page, so rows that are added meanwhile neither repeat nor hide
another row. It is opaque to clients, and bound to the filters of its listing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, TypeAdapter, ValidationError

from reshard_server.errors.problems import CONFLICT, INVALID, ProblemError


def canonical_text(document: Any) -> str:
    """JSON with sorted keys; unlike ``==`` it distinguishes 1 from true.

    The order of a mesh's axes has a meaning, so the order of ``{"data": 4, "model": 2}`` is kept.
    """
    return json.dumps(_ordered(document), sort_keys=True)


def _ordered(node: Any) -> Any:
    if isinstance(node, list):
        return list(map(_ordered, node))
    if not isinstance(node, dict):
        return node
    made = {key: _ordered(value) for key, value in node.items()}
    mesh = made.get("mesh")
    if isinstance(mesh, dict) and "axes" not in mesh:
        made["mesh"] = [[name, size] for name, size in mesh.items()]
    return made


PAGE_BYTES = 4 << 20
"""Size limit of the documents of one page; a larger document has a page of its own."""


def stored_bytes(document: Any) -> int:
    """The size of a document in the records."""
    return len(json.dumps(document).encode())


def bytes_of(db: sa.Engine, document: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The SQL expression for the size of a recorded document."""
    if db.dialect.name == "postgresql":
        return sa.func.octet_length(sa.cast(document, sa.Text))
    return sa.func.length(sa.cast(document, sa.LargeBinary))


def fitting(sizes: Sequence[int]) -> int:
    """The number of these documents that fit into one page, counted from the first; at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES and number:
            return number
    return len(sizes)


LONGEST = 1024


def page_token(listing: Any, key: tuple[str | float | int, ...]) -> str:
    """The token of the page after the row with this sort key; ``listing`` identifies the listing and its filters."""
    document = [_fingerprint(listing), *key]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def page_key(listing: Any, token: str, types: tuple[type, ...]) -> tuple[str | float | int, ...]:
    """The sort key in a token; ``types`` are the types of its parts.

    Raises ProblemError for a token of another listing.
    """
    parts = _decoded(token)
    if not isinstance(parts, list) or len(parts) != len(types) + 1:
        raise _refused("was not made by this server")
    if parts[0] != _fingerprint(listing):
        raise _refused("belongs to a listing with other filters")
    key = tuple(parts[1:])
    if any(type(part) is not expected for part, expected in zip(key, types, strict=True)):
        raise _refused("was not made by this server")
    return key


def _decoded(token: str) -> Any:
    try:
        padded = token[:LONGEST] + "=" * (-len(token) % 4)
        return json.loads(
            base64.b64decode(padded, altchars=b"-_", validate=True), parse_constant=lambda _: None
        )
    except (ValueError, binascii.Error, RecursionError):
        return None


def _fingerprint(listing: Any) -> str:
    text = json.dumps(listing, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refused(why: str) -> ProblemError:
    return ProblemError(
        INVALID,
        f"page_token {why}; take next_page_token of the previous page, with the same filters",
        "page_token",
    )


LOG = logging.getLogger(__name__)

T = TypeVar("T")
Record = TypeVar("Record")


class UnreadableError(ProblemError):
    """A record that only another version of the server can read."""


def read(of: TypeAdapter[T], document: Any, what: str) -> T:
    """Validates a recorded document; keeps members that this version does not know.

    Raises UnreadableError, which names ``what``, for a document that cannot be read.
    """
    try:
        return of.validate_python(document, extra="allow")
    except ValidationError as error:
        raise unreadable(what) from error


def unreadable(what: str) -> UnreadableError:
    """The error for a record that cannot be read."""
    remedy = "ask a server of the version that recorded it"
    return UnreadableError(
        CONFLICT,
        f"{what} was recorded by another version of the server, and this one cannot read it; {remedy}",
        remedy=remedy,
    )


def recorded(document: BaseModel) -> dict[str, Any]:
    """The document as it is recorded: without defaults."""
    return document.model_dump(mode="json", exclude_defaults=True)


def unknown_members(document: BaseModel) -> list[str]:
    """Paths of members that this version does not know, such as ``targets.0.colour``."""
    return list(_unknown(document))


def _unknown(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (path + name for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _unknown(one, f"{path}{number}.")


def readable(rows: Iterable[sa.Row[Any]], of_row: Callable[[sa.Row[Any]], Record]) -> list[Record]:
    """The record of each row; unreadable rows are left out and logged."""
    records = []
    for row in rows:
        try:
            records.append(of_row(row))
        except UnreadableError as error:
            LOG.warning("left out of a listing: %s", error.detail)
    return records
