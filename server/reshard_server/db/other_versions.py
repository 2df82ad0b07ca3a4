"""Records that another version of the server wrote.

A server of the version before or after may work on the same records (a rolling upgrade, or a step back). Documents in
them are written without the members that have their default, so that a member which is there was asked for. A
document with members that this version does not know is shown without them and stays unchanged in the records; only
servers that know all its members carry it out. A document that this version cannot read is left out of listings.
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
Told = TypeVar("Told")


class UnreadableError(ProblemError):
    """A record that only another version of the server can read."""


def read(of: TypeAdapter[T], document: Any, what: str) -> T:
    """A document of the records; members that this version does not know are kept.

    Raises UnreadableError, which names ``what``, where it cannot be read.
    """
    try:
        return of.validate_python(document, extra="allow")
    except ValidationError as error:
        raise unreadable(what) from error


def unreadable(what: str) -> UnreadableError:
    """The error of a record that cannot be read."""
    remedy = "ask a server of the version that recorded it"
    return UnreadableError(
        CONFLICT,
        f"{what} was recorded by another version of the server, and this one cannot read it; {remedy}",
        remedy=remedy,
    )


def recorded(document: BaseModel) -> dict[str, Any]:
    """A document as it is written to the records."""
    return document.model_dump(mode="json", exclude_defaults=True)


def unknown_members(document: BaseModel) -> list[str]:
    """Members, also of documents within it, that this version does not know: ``targets.0.colour``."""
    return list(_unknown(document))


def _unknown(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (path + name for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _unknown(one, f"{path}{number}.")


def readable(rows: Iterable[sa.Row[Any]], told: Callable[[sa.Row[Any]], Told]) -> list[Told]:
    """The record of each row; rows that cannot be read are left out and logged."""
    found = []
    for row in rows:
        try:
            found.append(told(row))
        except UnreadableError as error:
            LOG.warning("left out of a listing: %s", error.detail)
    return found
