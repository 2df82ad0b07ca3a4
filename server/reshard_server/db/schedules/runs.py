"""Runs of schedules: the outcome of each tick and each step; the oldest are forgotten.

A step has one row, and inserting the row claims the step: of several processes that see a new step one succeeds. The
holder of the claim hard-links the step and starts its conversion. The claim of a dead process is dropped, and the step
is new again::

    (none) ──claim──▶ holding ──start──▶ started ──its conversion failed, claim_again──▶ holding …
       ▲                 │ └──────────▶ gone | refused ──claim_again──▶ holding …
       └─────release─────┘

A step whose run is forgotten must not count as new, even if its folder comes back. So the numbers of forgotten steps
are kept, as arithmetic progressions. Servers of the previous version do not know these numbers, so the run of a step
is never forgotten while its folder exists.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.rows import ENDED, moment
from reshard_server.db.documents import page_key, page_token
from reshard_server.db.tables import CONVERSIONS, EXECUTORS, SCHEDULE_FORGOTTEN, SCHEDULE_RUNS
from reshard_server.schemas.schedule import Outcome, RunPage, ScheduleRun

OPEN, SETTLED, MAY_BE_RETRIED = 0, 1, 2
"""States of a run after its conversion: open until its end is handled, then settled; a failed one may be retried and end again."""

_R = SCHEDULE_RUNS.c
_C = CONVERSIONS.c


@dataclass(frozen=True, slots=True)
class StepClaim:
    """The right to start the conversion of a step.

    Attributes:
        text: the random text of the claim, and the name of its folder of hard links.
        before: the previous row, if the step was run before.
    """

    schedule: str
    step: int
    text: str
    before: ScheduleRun | None = None


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run whose conversion has ended, or was deleted (``state`` is None)."""

    schedule: str
    key: str
    step: int | None
    conversion: str
    state: str | None
    source: str | None


def page(db: sa.Engine, schedule: str, page_size: int, page_token_text: str | None) -> RunPage:
    """The history of a schedule, newest first."""
    listing = ["runs", schedule]
    query = _with_state().where(_R.schedule == schedule)
    if page_token_text:
        at, key = page_key(listing, page_token_text, (float, str))
        query = query.where(sa.or_(_R.at < at, sa.and_(_R.at == at, _R.key < key)))
    with db.connect() as connection:
        rows = connection.execute(
            query.order_by(_R.at.desc(), _R.key.desc()).limit(page_size + 1)
        ).all()
    last = rows[page_size - 1] if len(rows) > page_size else None
    return RunPage(
        runs=list(map(_run, rows[:page_size])),
        next_page_token=None if last is None else page_token(listing, (last.at, last.key)),
    )


def get(db: sa.Engine, schedule: str, key: str) -> ScheduleRun | None:
    """One run."""
    with db.connect() as connection:
        query = _with_state().where(_R.schedule == schedule, _R.key == key)
        row = connection.execute(query).one_or_none()
    return None if row is None else _run(row)


def last(db: sa.Engine, schedule: str) -> ScheduleRun | None:
    """The newest run."""
    newest = page(db, schedule, 1, None).runs
    return newest[0] if newest else None


def known_steps(db: sa.Engine, schedule: str) -> set[int]:
    """Steps that have a row."""
    query = sa.select(_R.step).where(_R.schedule == schedule, _R.step.is_not(None))
    with db.connect() as connection:
        return set(connection.execute(query).scalars())


def newest_at(db: sa.Engine, schedule: str) -> float:
    """The time of the newest run; 0 if there is none."""
    with db.connect() as connection:
        query = sa.select(sa.func.max(_R.at)).where(_R.schedule == schedule)
        return connection.execute(query).scalar() or 0.0


def has_queued(connection: sa.Connection, schedule: str) -> bool:
    """True if a conversion of the schedule waits in the queue."""
    waiting = sa.exists().where(_C.schedule == schedule, _C.state == "queued")
    return bool(connection.execute(sa.select(waiting)).scalar())


def has_running(connection: sa.Connection, schedule: str) -> bool:
    """True if a conversion of the schedule has not ended."""
    query = sa.select(sa.func.count()).where(_C.schedule == schedule, _C.state.not_in(ENDED))
    return bool(connection.execute(query).scalar())


def is_busy(connection: sa.Connection, schedule: str) -> bool:
    """True if a conversion of the schedule has not ended, or its end is not settled yet."""
    unsettled = sa.select(sa.func.count()).where(
        _R.schedule == schedule, _R.settled == OPEN, _R.outcome == "started"
    )
    return has_running(connection, schedule) or bool(connection.execute(unsettled).scalar())


def note(
    connection: sa.Connection,
    schedule: str,
    key: str,
    outcome: Outcome,
    *,
    step: int | None = None,
    conversion: str | None = None,
    detail: str | None = None,
) -> None:
    """Adds a run to the history."""
    row: dict[str, Any] = {"schedule": schedule, "key": key, "step": step, "detail": detail}
    row["at"] = clock_of(connection).now()
    settled = OPEN if conversion else SETTLED
    row |= {"outcome": outcome, "conversion": conversion, "settled": settled}
    connection.execute(SCHEDULE_RUNS.insert().values(row))


def skip(db: sa.Engine, schedule: str, step: int, detail: str) -> None:
    """Records that a step without a row is not converted; never claimed, so that ``:run`` may take it at any moment."""
    with suppress(sa.exc.IntegrityError), db.begin() as connection:
        note(connection, schedule, str(step), "skipped", step=step, detail=detail)


def claim(db: sa.Engine, schedule: str, step: int, executor: str) -> StepClaim | None:
    """Claims a step without a row; None if it has one."""
    claimed = StepClaim(schedule, step, secrets.token_hex(16))
    row = {"schedule": schedule, "key": str(step), "step": step}
    row |= _holding(claimed, executor, clock_of(db).now())
    try:
        with db.begin() as connection:
            connection.execute(SCHEDULE_RUNS.insert().values(row))
    except sa.exc.IntegrityError:  # another process claimed the step first
        return None
    return claimed


def claim_again(
    db: sa.Engine, schedule: str, before: ScheduleRun, executor: str
) -> StepClaim | None:
    """Claims a step again; None if its row is no longer as in ``before``."""
    claimed = StepClaim(schedule, int(before.key), secrets.token_hex(16), before)
    change = SCHEDULE_RUNS.update().where(
        _R.schedule == schedule,
        _R.key == before.key,
        _R.outcome == before.outcome,
        _R.conversion.is_not_distinct_from(before.conversion),
    )
    with db.begin() as connection:
        values = _holding(claimed, executor, clock_of(db).now())
        won = connection.execute(change.values(values)).rowcount
    return claimed if won else None


def end_claim(
    connection: sa.Connection,
    claimed: StepClaim,
    outcome: Outcome,
    *,
    conversion: str | None = None,
    detail: str | None = None,
) -> bool:
    """Records the outcome of the step; False if the claim is no longer valid."""
    values: dict[str, Any] = {"outcome": outcome, "conversion": conversion, "detail": detail}
    values |= {"at": clock_of(connection).now(), "executor": None, "claim": None}
    values["settled"] = OPEN if conversion else SETTLED
    change = SCHEDULE_RUNS.update().where(*_standing(claimed))
    return bool(connection.execute(change.values(values)).rowcount)


def release(db: sa.Engine, claimed: StepClaim) -> None:
    """Gives a claim up: the step is new again, or its row is as before."""
    before = claimed.before
    with db.begin() as connection:
        if before is None:
            connection.execute(SCHEDULE_RUNS.delete().where(*_standing(claimed)))
            return
        end_claim(
            connection, claimed, before.outcome, conversion=before.conversion, detail=before.detail
        )


def release_of_dead(db: sa.Engine, heard_after: sa.ColumnElement[float]) -> int:
    """Drops the claims of dead processes; returns their number."""
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    dead = (_R.settled == OPEN) & (_R.outcome == "holding") & _R.executor.not_in(live)
    with db.begin() as connection:
        return connection.execute(SCHEDULE_RUNS.delete().where(dead)).rowcount


def ended(db: sa.Engine) -> list[EndedRun]:
    """Runs whose conversion has ended and which are not settled."""
    query = (
        sa.select(SCHEDULE_RUNS, _C.state, _C.source)
        .join_from(SCHEDULE_RUNS, CONVERSIONS, _C.id == _R.conversion, isouter=True)
        .where(_R.settled == OPEN, _R.outcome == "started")
        .where(sa.or_(_C.id.is_(None), _C.state.in_(ENDED)))
        .order_by(_R.at)
        .limit(200)
    )
    with db.connect() as connection:
        return [
            EndedRun(r.schedule, r.key, r.step, r.conversion, r.state, r.source)
            for r in connection.execute(query)
        ]


def settle(db: sa.Engine, run: EndedRun, *, gone: str | None) -> None:
    """Marks a run as settled.

    Args:
        gone: the sign that the step was deleted before the conversion could read it; None if it was not.
    """
    values: dict[str, Any] = {"settled": SETTLED}
    if run.state in ("failed", "cancelled"):
        values["settled"] = MAY_BE_RETRIED
    if gone is not None:
        values |= {"outcome": "gone", "detail": gone}
    change = SCHEDULE_RUNS.update().where(
        _R.schedule == run.schedule,
        _R.key == run.key,
        _R.conversion == run.conversion,
        _R.settled == OPEN,
    )
    with db.begin() as connection:
        connection.execute(change.values(values))


def reopen_retried(db: sa.Engine) -> None:
    """Opens the runs of failed conversions that were retried, since these may end differently now."""
    failed = sa.select(_C.id).where(_C.id == _R.conversion, _C.state.in_(("failed", "cancelled")))
    there = sa.select(_C.id).where(_C.id == _R.conversion)
    retried = (_R.settled == MAY_BE_RETRIED) & there.exists() & ~failed.exists()
    with db.begin() as connection:
        connection.execute(
            SCHEDULE_RUNS.update()
            .where(retried)
            .values(settled=OPEN, outcome="started", detail=None)
        )


def _holding(claimed: StepClaim, executor: str, now: float) -> dict[str, Any]:
    return {
        "at": now,
        "outcome": "holding",
        "conversion": None,
        "detail": None,
        "executor": executor,
        "claim": claimed.text,
        "settled": OPEN,
    }


def _standing(claimed: StepClaim) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        _R.schedule == claimed.schedule,
        _R.key == str(claimed.step),
        _R.outcome == "holding",
        _R.claim == claimed.text,
    )


def _with_state() -> sa.Select[Any]:
    return sa.select(SCHEDULE_RUNS, _C.state).join_from(
        SCHEDULE_RUNS, CONVERSIONS, _C.id == _R.conversion, isouter=True
    )


def _run(row: sa.Row[Any]) -> ScheduleRun:
    facts = {name: row._mapping[name] for name in ScheduleRun.model_fields}
    return ScheduleRun(**facts | {"at": moment(row.at)})


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
