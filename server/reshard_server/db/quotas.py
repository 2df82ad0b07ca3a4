"""Quotas: limits on the layouts, maps and schedules that one token and all tokens store, and on their bytes.

Quotas are checked within the transaction that stores. Two transactions at the same moment may exceed a quota by one.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from reshard_server.db.stored.kinds import StoredKind
from reshard_server.db.tables import SCHEDULES
from reshard_server.errors.problems import QUOTA, ProblemError
from reshard_server.settings import Settings

_S = SCHEDULES.c


class StoredSize(NamedTuple):
    """The stored names and bytes, including those that are about to be stored."""

    names: int
    bytes: int


def _check(
    settings: Settings, what: str, token: str, everyone: StoredSize, own: StoredSize
) -> None:
    """Raises ProblemError if a quota of layouts, maps or schedules would be exceeded."""
    for scope, stored in (("_per_token", own), ("", everyone)):
        whose = f"by the token {token!r}" if scope else "by all tokens together"
        for setting, number, unit in (
            (f"{what}s{scope}", stored.names, f"{what}s"),
            (f"{what}_bytes{scope}", stored.bytes, f"bytes of {what}s"),
        ):
            if number > getattr(settings, setting):
                would_be = f"{number} {unit} would be stored {whose}"
                raise over(setting, would_be, getattr(settings, setting), what)


def over(setting: str, would_be: str, most: int, what: str) -> ProblemError:
    """The problem for a quota that is used up."""
    remedy = f"delete {what}s that are not needed, or have the setting {setting} raised"
    return ProblemError(
        QUOTA,
        f"{would_be}; this server stores at most {most} (its setting {setting}); {remedy}",
        remedy=remedy,
        extra={"quota": setting, "most": most},
    )


def check_version(
    connection: sa.Connection,
    settings: Settings,
    kind: StoredKind,
    token: str,
    name: str,
    nbytes: int,
) -> None:
    """Raises ProblemError if one more version of this name would exceed a quota."""
    noun, c = kind.noun, kind.c
    versions = connection.scalar(
        sa.select(sa.func.count()).where(c.name == name, c.deleted.is_(False))
    )
    most: int = getattr(settings, f"{noun}_versions")
    if versions and versions >= most:
        would_be = f"{versions + 1} versions of the {noun} {name!r} would be stored"
        raise over(f"{noun}_versions", would_be, most, noun)
    names = sa.func.count(sa.distinct(c.name))
    is_new = _counted(sa.func.sum(sa.case((c.name == name, 1), else_=0)))
    query = sa.select(names, _counted(sa.func.sum(c.bytes)), is_new).where(c.deleted.is_(False))
    everyone, own = (
        StoredSize(row[0] + (row[2] == 0), int(row[1]) + nbytes)
        for row in (
            connection.execute(query).one(),
            connection.execute(query.where(c.token == token)).one(),
        )
    )
    _check(settings, noun, token, everyone, own)


def check_schedule(
    connection: sa.Connection, settings: Settings, token: str, name: str, nbytes: int
) -> None:
    """Raises ProblemError if this schedule, new or replaced, would exceed a quota."""
    query = sa.select(sa.func.count(), _counted(sa.func.sum(_S.bytes))).where(_S.name != name)
    everyone, own = (
        StoredSize(row[0] + 1, int(row[1]) + nbytes)
        for row in (
            connection.execute(query).one(),
            connection.execute(query.where(_S.token == token)).one(),
        )
    )
    _check(settings, "schedule", token, everyone, own)


def _counted(value: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(value, 0)
