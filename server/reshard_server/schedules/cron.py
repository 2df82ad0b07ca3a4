"""Cron schedules: the due times of an expression, in UTC, the treatment of missed ticks, and the runs.

::

    next_at      due    now
    ───┬────┬─────┬──────┬───┬──▶     due: the last tick that is not after now
       └ missed ──┘      │   └ following
                         └ on time if due is at most LATE_SECONDS ago
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from croniter import CroniterError, croniter

from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.jobs.check_request import resolve_step
from reshard_server.schedules.scheduling import Occasion, QueueFullError, Run, Scheduling
from reshard_server.schemas.schedule import Clock

LATE_SECONDS = 300.0
"""A tick that is noticed this late still runs: a restart, or a step with many files, takes some time."""

_FIELDS = 5
_CHARACTERS = re.compile(r"[0-9A-Za-z*/,\-#? ]+")


@dataclass(frozen=True, slots=True)
class Ticks:
    """The decision about a schedule that is due.

    Attributes:
        run: the tick to run, or None.
        missed: the first and the last tick that are skipped, or None.
        following: the next tick.
    """

    run: float | None
    missed: tuple[float, float] | None
    following: float


def check_cron(cron: str, now: float) -> None:
    """Raises ProblemError for text that is not a cron expression, or an expression that is never due."""
    if len(cron.split()) != _FIELDS or not _CHARACTERS.fullmatch(cron):
        raise _no_cron(cron, f"found {len(cron.split())} fields")
    try:
        croniter(cron, now, hash_id=None).get_next(float)
    except (CroniterError, ValueError, KeyError, OverflowError) as error:
        raise _no_cron(cron, str(error)) from error
    if re.search(r"\br\b|\bh\b", cron, re.IGNORECASE):
        raise _no_cron(cron, "times by chance (R, H) are not supported")


def next_tick(cron: str, after: float) -> float:
    """The first tick after a time."""
    return float(croniter(cron, _utc(after)).get_next(float))


def last_tick(cron: str, at: float) -> float:
    """The last tick at or before a time."""
    just_after = _utc(at) + timedelta(microseconds=1)
    return float(croniter(cron, just_after).get_prev(float))


def ticks(cron: str, next_at: float, now: float, *, catch_up: bool) -> Ticks:
    """The decision now, if ``next_at`` is the first tick that was not handled."""
    due, following = max(next_at, last_tick(cron, now)), next_tick(cron, now)
    if now - due <= LATE_SECONDS or catch_up:
        before = last_tick(cron, due - 1)
        return Ticks(due, (next_at, before) if due > next_at else None, following)
    return Ticks(None, (next_at, due), following)


def second_text(seconds: float) -> str:
    """A time as keys and messages write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def microsecond_text(seconds: float) -> str:
    """A time to the microsecond, so that no two keys are equal."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _no_cron(cron: str, why: str) -> ProblemError:
    return ProblemError(
        INVALID,
        f"{cron!r} is not a cron expression that is ever due: {why}; give minute, hour, day of month, month and day of "
        "week, in UTC, such as '0 3 * * *'",
        "/when/cron",
    )


PREVIOUS_RUNS = "the conversion of the previous run has not ended"


def tick(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> None:
    """Runs the tick that is due, or notes the reason why not. Raises UnfitError if the schedule's token lost its rights."""
    scheduling.watched(stored)
    due = ticks(when.cron, stored.next_at or now, now, catch_up=when.catch_up)
    run: Run | str | None
    try:
        run = None if due.run is None else _prepared(scheduling, stored, when, due.run)
    except ProblemError as problem:
        run = problem.detail
    try:
        started = _advance_and_start(scheduling, stored, due, run)
    except sa.exc.IntegrityError:  # a replica whose clock is ahead has run it
        with scheduling.database.begin() as connection:
            schedules.advance(connection, stored, due.following)
        return
    if started is not None and isinstance(run, Run):
        scheduling.started(run, started)
    scheduling.forget_old_runs(stored)


def run_now(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> str | None:
    """Starts a run that is not due; returns its key, or None if the previous run has not ended.

    Raises UnfitError or ProblemError if it cannot run, QueueFullError if too many conversions wait.
    """
    scheduling.watched(stored)
    run = _prepared(scheduling, stored, when, now)
    key = microsecond_text(now)
    with scheduling.database.begin() as connection:
        if schedule_runs.has_running(connection, stored.name):
            return None
        started = scheduling.queue(connection, run)
        schedule_runs.note(
            connection, stored.name, key, "started", conversion=started, detail="asked for"
        )
    scheduling.started(run, started)
    return key


def _prepared(scheduling: Scheduling, stored: StoredSchedule, when: Clock, at: float) -> Run:
    """The run of the step and the item that are there now. Raises UnfitError or ProblemError if it cannot run."""
    source = resolve_step(scheduling.roots, scheduling.caller(stored), when).source
    return scheduling.prepared(stored, Occasion(source, at))


def _advance_and_start(
    scheduling: Scheduling, stored: StoredSchedule, due: Ticks, run: Run | str | None
) -> str | None:
    """The id of the conversion; None if another process won the tick, or nothing was started.

    Args:
        run: the run of the tick, the reason why it is impossible, or None if no tick is due.
    """
    with scheduling.database.begin() as connection:
        if not schedules.advance(connection, stored, due.following):
            return None
        if due.missed is not None:
            first, last = map(second_text, due.missed)
            span = first if first == last else f"{first} to {last}"
            detail = f"no server ran when this was due: {span}"
            schedule_runs.note(connection, stored.name, first, "skipped", detail=detail)
        if due.run is None or run is None:
            return None
        return _start(connection, scheduling, stored.name, second_text(due.run), run)


def _start(
    connection: sa.Connection, scheduling: Scheduling, name: str, key: str, run: Run | str
) -> str | None:
    """The id of the conversion; None if none was started, with the reason in the history."""
    if schedule_runs.has_running(connection, name):
        schedule_runs.note(connection, name, key, "skipped", detail=PREVIOUS_RUNS)
        return None
    if isinstance(run, Run):
        try:
            started = scheduling.queue(connection, run)
        except QueueFullError as full:
            run = str(full)
        else:
            schedule_runs.note(connection, name, key, "started", conversion=started)
            return started
    schedule_runs.note(connection, name, key, "refused", detail=run)
    return None
