"""The loop that runs all schedules, in one thread of the server, and cleans up after conversions and dead processes; runs at request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from reshard.errors import StorageError
from reshard.formats.steps import committed_among
from reshard.storage.location import Location
from reshard_server.db.clock import clock_of
from reshard_server.db.connections import TOPICS, news_of
from reshard_server.db.conversions import conversions, hard_links
from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import EndedRun, StepClaim
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.error_handlers import unavailable
from reshard_server.errors.problems import (
    CONFLICT,
    NOT_FOUND,
    STORAGE,
    STORAGE_REFUSED,
    TOO_MANY,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.observability.logs import audit
from reshard_server.schedules import cron
from reshard_server.schedules.cron import microsecond_text, tick
from reshard_server.schedules.hard_links import GoneError, StoppedError, listing, remove_links
from reshard_server.schedules.outputs import finish_removing, record_made, remove_old
from reshard_server.schedules.scheduling import QueueFullError, Scheduling, UnfitError
from reshard_server.schedules.watch_steps import (
    committed,
    covered_steps,
    occasion_of,
    poll,
    start_step,
    step_folders,
)
from reshard_server.schemas.schedule import Clock, NewSteps, ScheduleRun

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Shortest time between two checks for due work."""

AFTER_FAILURE_SECONDS = 2.0

RECOVER_SECONDS = 5.0
"""Seconds between two looks for unfinished work of dead processes."""


class ScheduleLoop:
    """Runs the schedules as long as the server runs."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.scheduling = scheduling
        self._thread: threading.Thread | None = None
        self._recovered = float("-inf")
        self._wake = threading.Event()

    def launch(self) -> None:
        """Starts the thread."""
        for topic in TOPICS:
            news_of(self.scheduling.database).wake(topic, self._wake.set)
        self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread; a step that is being linked is left for the next server."""
        self.scheduling.stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self.scheduling.stopping.wait(LOOK_SECONDS):
            self._wake.clear()
            done = [
                self._logged(self._recover, "cannot recover what dead processes left"),
                self._logged(lambda: settle(self.scheduling), "cannot settle ended runs"),
                self._logged(self._tick, "cannot look at schedules"),
            ]
            if all(done):
                self._wake.wait(self._pause())
            else:
                self.scheduling.stopping.wait(AFTER_FAILURE_SECONDS)

    def _pause(self) -> float:
        """Seconds until a schedule is due, or until the next look without a notification."""
        db = self.scheduling.database
        longest = news_of(db).look_seconds
        try:
            now = clock_of(db).now()
            due = schedules.next_due(db, now)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot find out when schedules are due: %s", error)
            return AFTER_FAILURE_SECONDS
        return longest if due is None else min(longest, due - now)

    def _tick(self) -> None:
        tick_all(self.scheduling, clock_of(self.scheduling.database).now())

    def _recover(self) -> None:
        if time.monotonic() - self._recovered > RECOVER_SECONDS:
            recover(self.scheduling)
            self._recovered = time.monotonic()

    def _logged(self, part: Callable[[], None], what: str) -> bool:
        """Runs one part of the loop; logs any error and returns False, since the other schedules must run."""
        try:
            part()
        except Exception as error:
            if unavailable(error) is None:
                LOG.exception(what)
            else:
                LOG.warning("%s: %s", what, error)
            return False
        return True


def tick_all(scheduling: Scheduling, now: float) -> None:
    """Runs every schedule that is due; cron schedules first, since they look at one folder at most."""
    found = schedules.due(scheduling.database, now)
    found.sort(key=lambda stored: not isinstance(stored.body.when, Clock))
    for stored in found:
        if scheduling.stopping.is_set():
            return
        when = stored.body.when
        try:
            if isinstance(when, Clock):
                tick(scheduling, stored, when, now)
            else:
                poll(scheduling, stored, when, now)
        except UnfitError as unfit:
            pause_unfit(scheduling, stored, unfit)
        except Exception as error:
            if unavailable(error) is not None:
                raise
            LOG.exception("the schedule %s", stored.name)


def pause_unfit(scheduling: Scheduling, stored: StoredSchedule, unfit: UnfitError) -> None:
    """Pauses a schedule whose token lost its rights, and notes that in its history."""
    now = clock_of(scheduling.database).now()
    if schedules.set_paused(scheduling.database, stored, now, paused=True, unchanged=True) is None:
        return
    LOG.warning("the schedule %s is paused: %s", stored.name, unfit)
    audit("paused", caller=stored.token, resource=f"/v1/schedules/{stored.name}", detail=str(unfit))
    with scheduling.database.begin() as connection:
        key = f"paused {microsecond_text(now)}"
        schedule_runs.note(connection, stored.name, key, "paused", detail=str(unfit))


_LOST = ("SourceChangedError", "MissingError", "IncompleteCheckpointError")
"""Errors of the library if objects vanish while a checkpoint is read."""


def settle(scheduling: Scheduling) -> None:
    """Cleans up after every conversion that has ended: hard links, outputs, history.

    Each part may be repeated, so a process may die in between, and two replicas may do it at once.
    """
    _remove_unused_links(scheduling)
    for run in schedule_runs.ended(scheduling.database):
        _settle(scheduling, run)


def recover(scheduling: Scheduling) -> None:
    """Takes over unfinished work of dead processes."""
    dropped = schedule_runs.release_of_dead(scheduling.database, scheduling.heard_after)
    if dropped:
        LOG.warning(
            "released %d steps whose server died before it started their conversions", dropped
        )
    schedule_runs.reopen_retried(scheduling.database)
    for output in schedule_outputs.being_removed(scheduling.database):
        stored = schedules.get(scheduling.database, output.schedule)
        if stored is not None:
            finish_removing(scheduling, stored, output)


def _remove_unused_links(scheduling: Scheduling) -> None:
    db = scheduling.database
    hard_links.release_ended(db)
    for links in hard_links.unused(db, scheduling.heard_after):
        try:
            remove_links(links.path)
        except OSError as error:
            LOG.warning("the hard links %s cannot be removed: %s", links.path, error)
        else:
            hard_links.forget(db, links.id)


def _settle(scheduling: Scheduling, run: EndedRun) -> None:
    gone = None
    if run.state == "succeeded":
        try:
            record_made(scheduling, run.conversion)
        except ProblemError as problem:
            LOG.warning(
                "an output of %s is not recorded, so it will not be removed: %s",
                run.schedule,
                problem.detail,
            )
    elif run.state == "failed":
        gone = _gone(scheduling, run)
    schedule_runs.settle(scheduling.database, run, gone=gone)
    stored = schedules.get(scheduling.database, run.schedule)
    if stored is not None and run.state == "succeeded":
        remove_old(scheduling, stored)
    if stored is not None and stored.body.delta is not None:
        schedules.look_now(scheduling.database, stored.name)  # the next version waited for this one


def _gone(scheduling: Scheduling, run: EndedRun) -> str | None:
    """The sign that the step is gone, if the conversion failed because it was deleted while it was read; else None."""
    if run.step is None or run.source is None:
        return None
    try:
        step = scheduling.roots.recheck(run.source)
        if step.local is None:
            return _gone_from_bucket(scheduling, run, step)
        lost = listing(step.local).lost_files
    except GoneError:
        lost = True
    except (ProblemError, StorageError, OSError):
        return None
    return "it was deleted while it was read, without hard links" if lost else None


def _gone_from_bucket(scheduling: Scheduling, run: EndedRun, step: Location) -> str | None:
    """``_gone`` for a bucket: a training run that deletes a step may delete its marker last."""
    ended = conversions.get(scheduling.database, run.conversion)
    error = (ended and ended.error) or {}
    was_lost = error.get("error") in _LOST and error.get("status") != STORAGE_REFUSED.status
    if was_lost or not scheduling.roots.ask(
        run.source or "", lambda: committed_among(step.parent, [step.name])
    ):
        return "it was deleted while it was read"
    return None


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
        occasion = occasion_of(scheduling, stored, when, number, there, now)
    except StorageError as error:
        raise _unreadable(stored.body.targets[0].target, error, "/targets/0/target") from error
    claimed = _claim(scheduling, stored, number)
    start_step(scheduling, stored, claimed, occasion, requested=True)
    return str(number)


def _step(
    scheduling: Scheduling, stored: StoredSchedule, when: NewSteps, step: int | None
) -> tuple[int, dict[int, str]]:
    """The step, by default the newest that the schedule covers, and the folder of each step that is there."""
    directory = scheduling.watched(stored).remembered()

    def look() -> tuple[int | None, dict[int, str]]:
        folders = step_folders(directory, when)
        covered = covered_steps(folders, when) if step is None else folders
        ahead = [n for n in reversed(covered) if step is None or n == step]
        return next(committed(directory, {n: covered[n] for n in ahead}), None), folders

    try:
        number, there = scheduling.roots.ask(when.directory, look)
    except StorageError as error:
        raise _unreadable(when.directory, error, "/when/directory") from error
    if number is None:
        what = "no committed step" + (" that the schedule covers" if step is None else f" {step}")
        raise ProblemError(
            NOT_FOUND, f"there is {what} in {when.directory!r} now; name one that is there", "/step"
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
