"""Runs a cron schedule that is due."""

from __future__ import annotations

import sqlalchemy as sa

from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.cron import Ticks, microsecond_text, second_text, ticks
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schedules.start_run import (
    Occasion,
    QueueFullError,
    insert_conversion,
    request_of,
)
from reshard_server.schemas.conversion import JobRequest
from reshard_server.schemas.schedule import Clock

PREVIOUS_RUNS = "the conversion of the previous run has not ended"


def tick(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> None:
    """Runs the tick that is due, or notes why not. Raises UnfitError if the schedule's token lost its rights."""
    scheduling.watched(stored)
    due = ticks(when.cron, stored.next_at or now, now, catch_up=when.catch_up)
    request, refused = None, None
    if due.run is not None:
        occasion = Occasion(when.source, due.run)
        request, refused = _checked(scheduling, stored, occasion)
    try:
        started = _advance_and_start(scheduling, stored, due, request, refused)
    except sa.exc.IntegrityError:  # a replica whose clock is ahead has run it
        with scheduling.database.begin() as connection:
            schedules.advance(connection, stored, due.following)
        return
    if started is not None and request is not None:
        scheduling.started(stored, request, started)
    scheduling.forget_old_runs(stored)


def run_now(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> str | None:
    """Starts a run that is not due; returns its key, or None if the previous run has not ended.

    Raises UnfitError or ProblemError if it cannot run, QueueFullError if too many conversions wait.
    """
    occasion = Occasion(when.source, now)
    request = request_of(stored.name, stored.body, occasion)
    scheduling.watched(stored)
    scheduling.check(stored, request)
    key = microsecond_text(now)
    with scheduling.database.begin() as connection:
        if schedule_runs.has_running(connection, stored.name):
            return None
        started = insert_conversion(connection, scheduling, stored, request, occasion)
        schedule_runs.note(
            connection, stored.name, key, "started", conversion=started, detail="asked for"
        )
    scheduling.started(stored, request, started)
    return key


def _checked(
    scheduling: Scheduling, stored: StoredSchedule, occasion: Occasion
) -> tuple[JobRequest, str | None]:
    request = request_of(stored.name, stored.body, occasion)
    try:
        scheduling.check(stored, request)
    except ProblemError as problem:
        return request, problem.detail
    return request, None


def _advance_and_start(
    scheduling: Scheduling,
    stored: StoredSchedule,
    due: Ticks,
    request: JobRequest | None,
    refused: str | None,
) -> str | None:
    """The id of the conversion; None if another process won the tick, or nothing was started."""
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
    first, last = map(second_text, due.missed)
    span = first if first == last else f"{first} to {last}"
    detail = f"no server ran when this was due: {span}"
    schedule_runs.note(connection, stored.name, first, "skipped", detail=detail)


def _start(
    connection: sa.Connection,
    scheduling: Scheduling,
    stored: StoredSchedule,
    request: JobRequest,
    refused: str | None,
    due: float,
) -> str | None:
    """The id of the conversion; None if none was started, and the history says why."""
    name, key = stored.name, second_text(due)
    if schedule_runs.has_running(connection, name):
        schedule_runs.note(connection, name, key, "skipped", detail=PREVIOUS_RUNS)
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
