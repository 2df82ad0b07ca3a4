"""Records that another version of the server wrote.

A server of the previous or the next version may work on the same records (a rolling upgrade, or a downgrade). Documents
are recorded without members that have their default, so a recorded member was requested. A document with unknown
members is shown without them and stays unchanged in the records; only servers that know all its members carry it out. A
document that this version cannot read is left out of listings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, TypeAdapter, ValidationError

from reshard_server.errors.problems import CONFLICT, ProblemError

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
