"""Parts of a conversion: rows of the same queue, whose ends decide over the conversion's own row.

::

    queued ──claim──▶ running ──split──▶ running, without a claim ──all parts succeeded, claim──▶ running ──▶ succeeded | failed
    a part:  queued ──claim──▶ running ──▶ succeeded      counts down the conversion's ``parts_left``
                                     └───▶ failed         stops the other parts; the conversion is cancelling until they have ended

A conversion has ended only if all its parts have: it fails if one of them failed, and is cancelled otherwise. Each change first locks the
conversion's row, so that of two parts that end at once the second one sees the end of the first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.rows import count_ended
from reshard_server.db.tables import CONVERSIONS

_C = CONVERSIONS.c
_P = CONVERSIONS.alias().c

ROWS_AT_ONCE = 1000
"""Rows of one statement: some milliseconds of either database."""


@dataclass(frozen=True, slots=True)
class Split:
    """The result of a split.

    Attributes:
        parts: their number; 0 where the targets are finished already.
        anew: True where what was begun could not be resumed, so that every part begins anew.
        max_memory, workers: the limits that all parts have.
    """

    parts: int
    total_bytes: int
    anew: bool
    max_memory: int
    workers: int


def lock_conversions(connection: sa.Connection, ids: Collection[str]) -> None:
    """Locks the rows of conversions until the transaction ends, in one order; SQLite has one writer anyway."""
    if ids:
        rows = sa.select(_C.id).where(_C.id.in_(ids)).order_by(_C.id)
        connection.execute(rows.with_for_update())


def record(connection: sa.Connection, conversion: sa.Row[Any], found: Split) -> None:
    """Queues the parts of a conversion that was split; those that succeeded before and still count are kept."""
    of_this = _C.parent == conversion.id
    there = connection.execute(
        sa.select(sa.func.count(), sa.func.sum(_C.revision)).where(of_this)
    ).one()
    dropped, left = 0, found.parts
    if there[0] == found.parts and not found.anew:
        fresh: dict[str, Any] = dict.fromkeys(("progress", "error"), sa.null())
        fresh |= dict.fromkeys(("started_at", "ended_at", "read_bytes", "host"))
        again = CONVERSIONS.update().where(of_this, _C.state.in_(("failed", "cancelled")))
        connection.execute(
            again.values(state="queued", attempts=0, revision=_C.revision + 1, **fresh)
        )
        waiting = sa.select(sa.func.count()).where(of_this, _C.state != "succeeded")
        left = connection.scalar(waiting) or 0
    else:
        # The sum of all revisions never falls: it is the revision that clients see.
        dropped = there[1] or 0
        connection.execute(CONVERSIONS.delete().where(of_this))
        for first in range(1, found.parts + 1, ROWS_AT_ONCE):
            numbers = range(first, min(first + ROWS_AT_ONCE, found.parts + 1))
            rows = [_row(conversion, number, found) for number in numbers]
            connection.execute(CONVERSIONS.insert(), rows)
    connection.execute(
        CONVERSIONS.update()
        .where(_C.id == conversion.id)
        .values(parts_left=left, revision=_C.revision + dropped)
    )


def _row(conversion: sa.Row[Any], number: int, found: Split) -> dict[str, Any]:
    return {
        "id": f"{conversion.id}-{number:05d}",
        "parent": conversion.id,
        "part": number,
        "parts": found.parts,
        "state": "queued",
        # Not a request: servers of an earlier version can neither read, list nor carry it out.
        "request": {"part_of": conversion.id},
        "max_memory": found.max_memory,
        "workers": found.workers,
        **{
            name: conversion._mapping[name]
            for name in ("token", "priority", "source", "created_at")
        },
    }


def note_end(
    connection: sa.Connection, conversion: str, state: str, error: dict[str, Any] | None
) -> None:
    """Lets the end of one part take effect on its conversion, which is locked."""
    own = CONVERSIONS.update().where(_C.id == conversion)
    again = {"revision": _C.revision + 1}
    if state == "succeeded":
        left = own.where(_C.parts_left > 0).values(parts_left=_C.parts_left - 1, **again)
        connection.execute(left)
    elif state == "failed":  # of several errors the first one counts
        failed = own.where(_C.state == "running").values(state="cancelling", error=error, **again)
        connection.execute(failed)
    # Also after a cancellation by a server of an earlier version, which knows no parts.
    if connection.scalar(sa.select(_C.state).where(_C.id == conversion)) == "cancelling":
        stop(connection, conversion)
    settle(connection, [conversion])


def stop(connection: sa.Connection, conversion: str) -> None:
    """Cancels the parts of a locked conversion: those that wait at once, those that run as soon as their processes see it."""
    # One statement: a part that is handed back in between is not missed.
    waits = _C.state == "queued"
    connection.execute(
        CONVERSIONS.update()
        .where(_C.parent == conversion, _C.state.in_(("queued", "running")))
        .values(
            state=sa.case((waits, "cancelled"), else_="cancelling"),
            ended_at=sa.case((waits, clock_of(connection).now()), else_=None),
            revision=_C.revision + 1,
        )
    )


def settle(connection: sa.Connection, conversions: Collection[str]) -> None:
    """Ends those of the conversions that are to stop, and of which no part runs any more."""
    if not conversions:
        return
    lock_conversions(connection, conversions)
    now = clock_of(connection).now()
    of_them = sa.select(_P.id).where(_P.parent == _C.id)
    runs = of_them.where(_P.state.in_(("running", "cancelling"))).exists()
    failed = of_them.where(_P.state == "failed").exists()
    ended = (
        CONVERSIONS.update()
        .where(
            _C.id.in_(conversions),
            _C.state == "cancelling",
            _C.claim.is_(None),
            _C.parts_left.is_not(None),
            ~runs,
        )
        .values(
            state=sa.case((failed, "failed"), else_="cancelled"),
            ended_at=now,
            revision=_C.revision + 1,
        )
        .returning(_C.state, _C.started_at)
    )
    for row in connection.execute(ended).all():
        count_ended(connection, row.state, now - (row.started_at or now), 0)
