"""Forgets old runs of schedules; the newest of each schedule are kept.

A step whose run is forgotten must not count as new, even if its folder comes back. So the numbers of forgotten steps
are kept, as arithmetic progressions. Servers of the previous version do not know these numbers, so the run of a step
is never forgotten while its folder exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from reshard_server.db.schedules.runs import MAY_BE_RETRIED, SETTLED
from reshard_server.db.tables import CONVERSIONS, SCHEDULE_FORGOTTEN, SCHEDULE_RUNS

Progression = tuple[int, int, int]
"""First step, last step, and the distance between neighbours."""


def progressions(steps: Iterable[int]) -> list[Progression]:
    """The steps as progressions, found greedily in ascending order."""
    found: list[Progression] = []
    ordered = sorted(set(steps))
    begin = 0
    while begin < len(ordered):
        end = _end(ordered, begin)
        stride = ordered[begin + 1] - ordered[begin] if end > begin else 1
        found.append((ordered[begin], ordered[end], stride))
        begin = end + 1
    return found


def _end(ordered: list[int], begin: int) -> int:
    """Index of the last step of the progression that starts at ``begin``.

    A progression has one step, or at least three; two only at the end.
    """
    if begin + 1 == len(ordered):
        return begin
    stride, end = ordered[begin + 1] - ordered[begin], begin + 1
    while end + 1 < len(ordered) and ordered[end + 1] - ordered[end] == stride:
        end += 1
    return end if end > begin + 1 or end + 1 == len(ordered) else begin


def expanded(known: Iterable[Progression]) -> set[int]:
    """All steps of the progressions."""
    return {step for first, last, stride in known for step in range(first, last + 1, stride)}


def among(known: Iterable[Progression], steps: Iterable[int]) -> set[int]:
    """The steps that are in one of the progressions."""
    listed = list(known)
    return {
        step
        for step in steps
        if any(first <= step <= last and (step - first) % by == 0 for first, last, by in listed)
    }


BATCH = 200
"""Rows per transaction, so that others need not wait long."""

_R = SCHEDULE_RUNS.c
_F = SCHEDULE_FORGOTTEN.c


def forget_old(db: sa.Engine, schedule: str, keep: int, there: Collection[int] = ()) -> int:
    """Forgets old settled runs; returns their number.

    Args:
        keep: at least this many of the newest runs are kept.
        there: steps whose folders exist.
    """
    old = [key for key, step in _old(db, schedule, keep) if step not in there]
    gone = 0
    for begin in range(0, len(old), BATCH):
        gone += _forget(db, schedule, old[begin : begin + BATCH])
    return gone


def forgotten(db: sa.Engine, schedule: str, steps: Iterable[int]) -> set[int]:
    """The steps among these whose runs were forgotten."""
    with db.connect() as connection:
        return among(_steps(connection, schedule), steps)


def _old(db: sa.Engine, schedule: str, keep: int) -> list[tuple[str, int | None]]:
    newest = sa.select(_R.at).where(_R.schedule == schedule).order_by(_R.at.desc())
    with db.connect() as connection:
        since = connection.scalar(newest.offset(keep - 1).limit(1))
        if since is None:
            return []
        query = sa.select(_R.key, _R.step).where(
            _R.schedule == schedule, _R.at < since, _settled_for_good()
        )
        return [(row.key, row.step) for row in connection.execute(query.order_by(_R.at))]


def _settled_for_good() -> sa.ColumnElement[bool]:
    """Settled for good: a failed conversion may be retried as long as its record exists."""
    there = sa.select(CONVERSIONS.c.id).where(CONVERSIONS.c.id == _R.conversion).exists()
    return (_R.settled == SETTLED) | ((_R.settled == MAY_BE_RETRIED) & ~there)


def _forget(db: sa.Engine, schedule: str, keys: list[str]) -> int:
    with db.begin() as connection:
        before = _steps(connection, schedule, locked=True)
        old = SCHEDULE_RUNS.delete().where(
            _R.schedule == schedule, _R.key.in_(keys), _settled_for_good()
        )
        steps = list(connection.scalars(old.returning(_R.step)))
        known = [step for step in steps if step is not None]
        if known:
            _record(connection, schedule, progressions(expanded(before) | set(known)))
    return len(steps)


def _record(connection: sa.Connection, schedule: str, steps: list[Progression]) -> None:
    change = SCHEDULE_FORGOTTEN.update().where(_F.schedule == schedule).values(steps=steps)
    if not connection.execute(change).rowcount:
        connection.execute(SCHEDULE_FORGOTTEN.insert().values(schedule=schedule, steps=steps))


def _steps(connection: sa.Connection, schedule: str, *, locked: bool = False) -> list[Progression]:
    query = sa.select(_F.steps).where(_F.schedule == schedule)
    found = connection.scalar(query.with_for_update() if locked else query)
    return [(first, last, stride) for first, last, stride in found or ()]
