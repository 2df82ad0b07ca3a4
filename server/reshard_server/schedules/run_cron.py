"""Runs a cron schedule that is due."""

from __future__ import annotations

import sqlalchemy as sa

from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.cron import Ticks, exactly_written, ticks, written
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schedules.start_run import (
    Occasion,
    QueueFullError,
    insert_conversion,
    request_of,
)
from reshard_server.schemas.conversion import ConversionRequest
from reshard_server.schemas.schedule import Clock

STILL_GOING_ON = "the conversion of the run before has not ended"


def tick(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> None:
    """Runs what is due, or says why not. Raises UnfitError where its token may not any more."""
    scheduling.watched(stored)
    due = ticks(when.cron, stored.next_at or now, now, catch_up=when.catch_up)
    request, refused = None, None
    if due.run is not None:
        occasion = Occasion(when.source, due.run)
        request, refused = _checked(scheduling, stored, occasion)
    try:
        started = _won(scheduling, stored, due, request, refused)
    except sa.exc.IntegrityError:  # it was run already, by a replica whose clock is ahead
        with scheduling.database.begin() as connection:
            schedules.advance(connection, stored, due.following)
        return
    if started is not None and request is not None:
        scheduling.started(stored, request, started)
    scheduling.forget_old_runs(stored)


def run_now(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> str | None:
    """Starts a run that is not due; its key, or None where the run before has not ended.

    Raises UnfitError and ProblemError where it cannot be, QueueFullError where too much waits.
    """
    occasion = Occasion(when.source, now)
    request = request_of(stored.name, stored.body, occasion)
    scheduling.watched(stored)
    scheduling.check(stored, request)
    key = exactly_written(now)
    with scheduling.database.begin() as connection:
        if schedule_runs.is_going_on(connection, stored.name):
            return None
        started = insert_conversion(connection, scheduling, stored, request, occasion)
        schedule_runs.note(
            connection, stored.name, key, "started", conversion=started, detail="asked for"
        )
    scheduling.started(stored, request, started)
    return key


def _checked(
    scheduling: Scheduling, stored: StoredSchedule, occasion: Occasion
) -> tuple[ConversionRequest, str | None]:
    request = request_of(stored.name, stored.body, occasion)
    try:
        scheduling.check(stored, request)
    except ProblemError as problem:
        return request, problem.detail
    return request, None


def _won(
    scheduling: Scheduling,
    stored: StoredSchedule,
    due: Ticks,
    request: ConversionRequest | None,
    refused: str | None,
) -> str | None:
    """The conversion that was started; None where another process won the tick, or nothing was."""
    with scheduling.database.begin() as connection:
        if not schedules.advance(connection, stored, due.following):
            return None
        _note_missed(connection, stored, due)
        if due.run is None or request is None:
            return None
        return _start(connection, scheduling, stored, request, refused, due.run)


def _note_missed(connection: sa.Connection, stored: StoredSchedule, due: Ticks) -> None:
    if due.missed is None:
        return
    first, last = map(written, due.missed)
    span = first if first == last else f"{first} to {last}"
    detail = f"no server was there for what was due at {span}"
    schedule_runs.note(connection, stored.name, first, "skipped", detail=detail)


def _start(
    connection: sa.Connection,
    scheduling: Scheduling,
    stored: StoredSchedule,
    request: ConversionRequest,
    refused: str | None,
    due: float,
) -> str | None:
    """The conversion that was started, or None; the history says why."""
    name, key = stored.name, written(due)
    if schedule_runs.is_going_on(connection, name):
        schedule_runs.note(connection, name, key, "skipped", detail=STILL_GOING_ON)
        return None
    if refused is None:
        try:
            occasion = Occasion(request.source, due)
            started = insert_conversion(connection, scheduling, stored, request, occasion)
        except QueueFullError as full:
            refused = str(full)
    if refused is not None:
        schedule_runs.note(connection, name, key, "refused", detail=refused)
        return None
    schedule_runs.note(connection, name, key, "started", conversion=started)
    return started
