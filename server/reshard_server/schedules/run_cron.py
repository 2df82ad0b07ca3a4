"""Runs a cron schedule that is due."""

from __future__ import annotations

import sqlalchemy as sa

from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.choose_step import resolve_step
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
    """Runs the tick that is due, or notes the reason why not. Raises UnfitError if the schedule's token lost its rights."""
    scheduling.watched(stored)
    due = ticks(when.cron, stored.next_at or now, now, catch_up=when.catch_up)
    request = None if due.run is None else _checked(scheduling, stored, when, due.run)
    try:
        started = _advance_and_start(scheduling, stored, due, request)
    except sa.exc.IntegrityError:  # a replica whose clock is ahead has run it
        with scheduling.database.begin() as connection:
            schedules.advance(connection, stored, due.following)
        return
    if started is not None and not isinstance(request, str | None):
        scheduling.started(stored, request, started)
    scheduling.forget_old_runs(stored)


def run_now(scheduling: Scheduling, stored: StoredSchedule, when: Clock, now: float) -> str | None:
    """Starts a run that is not due; returns its key, or None if the previous run has not ended.

    Raises UnfitError or ProblemError if it cannot run, QueueFullError if too many conversions wait.
    """
    scheduling.watched(stored)
    request = _request(scheduling, stored, when, now)
    occasion = Occasion(request.source, now)
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


def _request(scheduling: Scheduling, stored: StoredSchedule, when: Clock, at: float) -> JobRequest:
    """The request of a run, of the step and the item that are there now. Raises UnfitError or ProblemError if it cannot run."""
    source = resolve_step(scheduling.roots, scheduling.caller(stored), when).source
    request = request_of(stored.name, stored.body, Occasion(source, at))
    scheduling.check(stored, request)
    return request


def _checked(
    scheduling: Scheduling, stored: StoredSchedule, when: Clock, at: float
) -> JobRequest | str:
    """The request, or the reason why there is none."""
    try:
        return _request(scheduling, stored, when, at)
    except ProblemError as problem:
        return problem.detail


def _advance_and_start(
    scheduling: Scheduling,
    stored: StoredSchedule,
    due: Ticks,
    request: JobRequest | str | None,
) -> str | None:
    """The id of the conversion; None if another process won the tick, or nothing was started."""
    with scheduling.database.begin() as connection:
        if not schedules.advance(connection, stored, due.following):
            return None
        _note_missed(connection, stored, due)
        if due.run is None or request is None:
            return None
        return _start(connection, scheduling, stored, request, due.run)


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
    request: JobRequest | str,
    due: float,
) -> str | None:
    """The id of the conversion; None if none was started, with the reason in the history."""
    name, key = stored.name, second_text(due)
    if schedule_runs.has_running(connection, name):
        schedule_runs.note(connection, name, key, "skipped", detail=PREVIOUS_RUNS)
        return None
    if not isinstance(request, str):
        try:
            occasion = Occasion(request.source, due)
            started = insert_conversion(connection, scheduling, stored, request, occasion)
        except QueueFullError as full:
            request = str(full)
        else:
            schedule_runs.note(connection, name, key, "started", conversion=started)
            return started
    schedule_runs.note(connection, name, key, "refused", detail=request)
    return None
