"""Runs a schedule at once, for a client that asks for it."""

from __future__ import annotations

from reshard.errors import StorageError
from reshard.storage.location import Location
from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules.runs import StepClaim
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import (
    CONFLICT,
    NOT_FOUND,
    STORAGE,
    TOO_MANY,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.schedules import cron
from reshard_server.schedules.hard_links import StoppedError
from reshard_server.schedules.loop import pause_unfit
from reshard_server.schedules.scheduling import QueueFullError, Scheduling, UnfitError
from reshard_server.schedules.watch_steps import (
    committed,
    covered_steps,
    occasion_of,
    start_step,
    step_folders,
)
from reshard_server.schemas.schedule import Clock, NewSteps, ScheduleRun

RETRY_AFTER = "30"


def run_now(
    scheduling: Scheduling, stored: StoredSchedule, step: int | None, now: float
) -> ScheduleRun:
    """Queues the conversion of a run, and returns the run.

    Raises ProblemError if there is no such step, it is running, it was converted already, or too many conversions
    wait.
    """
    try:
        key = _run(scheduling, stored, step, now)
    except UnfitError as unfit:
        pause_unfit(scheduling, stored, unfit)
        raise ProblemError(CONFLICT, f"the schedule {stored.name!r} is paused: {unfit}") from unfit
    except QueueFullError as full:
        raise ProblemError(
            TOO_MANY,
            f"{full}; wait until some have ended, or cancel some",
            headers={"Retry-After": RETRY_AFTER},
        ) from full
    except StoppedError as stopped:
        raise ProblemError(
            UNAVAILABLE,
            "this server is ending; send the request again, to another replica or once it is back",
        ) from stopped
    run = schedule_runs.get(scheduling.database, stored.name, key)
    if run is None:
        raise _busy(stored, key)
    return run


def _run(scheduling: Scheduling, stored: StoredSchedule, step: int | None, now: float) -> str:
    """The key of the run."""
    when = stored.body.when
    if isinstance(when, Clock):
        if step is not None:
            raise ProblemError(
                CONFLICT,
                f"the schedule {stored.name!r} goes by the clock and has no steps; leave step out",
                "/step",
            )
        key = cron.run_now(scheduling, stored, when, now)
        if key is None:
            raise _busy(stored, "the previous run")
        return key
    number, there = _step(scheduling, stored, when, step)
    try:
        planned = occasion_of(scheduling, stored, when, number, there, now)
    except StorageError as error:
        raise _unreadable(stored.body.targets[0].target, error, "/targets/0/target") from error
    claimed = _claim(scheduling, stored, number)
    start_step(scheduling, stored, claimed, planned, requested=True)
    return str(number)


def _step(
    scheduling: Scheduling, stored: StoredSchedule, when: NewSteps, step: int | None
) -> tuple[int, dict[int, str]]:
    """The step, and the folder of each step that is there."""
    directory = scheduling.watched(stored).remembered()
    try:
        number, there = scheduling.roots.ask(
            when.directory, lambda: _committed(directory, when, step)
        )
    except StorageError as error:
        raise _unreadable(when.directory, error, "/when/directory") from error
    if number is None:
        what = "no committed step" + (" that the schedule covers" if step is None else f" {step}")
        raise ProblemError(
            NOT_FOUND,
            f"there is {what} in {when.directory!r} now; name one that is there",
            "/step",
        )
    return number, there


def _unreadable(path: str, error: StorageError, field: str) -> ProblemError:
    cause = error.__cause__
    reason = f": {cause.strerror}" if isinstance(cause, OSError) else ""
    return ProblemError(
        STORAGE,
        f"the directory {path!r} cannot be read{reason}; correct it, or the schedule",
        field,
    )


def _committed(
    directory: Location, when: NewSteps, step: int | None
) -> tuple[int | None, dict[int, str]]:
    """This step, or the newest that the schedule covers, None if it is not committed; and the folder of each step."""
    folders = step_folders(directory, when)
    covered = covered_steps(folders, when) if step is None else folders
    chosen = {
        number: covered[number] for number in reversed(covered) if step is None or number == step
    }
    found = next(committed(directory, chosen), None)
    return found, folders


def _claim(scheduling: Scheduling, stored: StoredSchedule, step: int) -> StepClaim:
    db, name = scheduling.database, stored.name
    before = schedule_runs.get(db, name, str(step))
    if before is None:
        claimed = schedule_runs.claim(db, name, step, scheduling.executor)
    else:
        is_running = before.state is not None and before.state not in ENDED
        if before.outcome == "holding" or is_running:
            raise _busy(stored, f"step {before.key}")
        if before.state == "succeeded" or schedule_outputs.was_made(db, name, step):
            raise ProblemError(
                CONFLICT,
                f"step {step} was converted already (conversion {before.conversion}), and no step is converted twice; "
                "ask for a conversion of its own at /v1/conversions",
                "/step",
            )
        claimed = schedule_runs.claim_again(db, name, before, scheduling.executor)
    if claimed is None:
        raise _busy(stored, f"step {step}")
    return claimed


def _busy(stored: StoredSchedule, what: str) -> ProblemError:
    return ProblemError(
        CONFLICT,
        f"{what} of the schedule {stored.name!r} is being converted now; wait for it to end, or cancel its conversion",
    )
