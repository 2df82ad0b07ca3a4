"""The loop that runs all schedules, and runs at request.

One thread starts the look at each schedule that is due, in a thread of a pool. Another cleans up (``clean_up``). So a directory that
answers slowly delays no other schedule, and a step is found while old outputs are removed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from reshard.errors import StorageError
from reshard_server.db.clock import clock_of
from reshard_server.db.connections import TOPICS, news_of
from reshard_server.db.conversions.rows import ENDED
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import StepClaim
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.error_handlers import unavailable
from reshard_server.errors.problems import (
    CONFLICT,
    NOT_FOUND,
    STORAGE,
    TOO_MANY,
    UNAVAILABLE,
    ProblemError,
)
from reshard_server.observability.logs import audit
from reshard_server.schedules import cron
from reshard_server.schedules.clean_up import recover, settle
from reshard_server.schedules.cron import microsecond_text, tick
from reshard_server.schedules.hard_links import StoppedError
from reshard_server.schedules.scheduling import (
    QueueFullError,
    Scheduling,
    UnfitError,
)
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

LOOK_SECONDS = 0.1
"""Shortest time between two checks for due work, which takes some milliseconds; a step that waits for another waits so long twice."""

LOOKS_AT_ONCE = 8
"""Schedules that are looked at at once; eight looks at a bucket of 50 ms each are 160 in a second."""

AFTER_FAILURE_SECONDS = 2.0

RECOVER_SECONDS = 5.0
"""Seconds between two looks for unfinished work of dead processes."""


class ScheduleLoop:
    """Runs the schedules as long as the server runs."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.scheduling = scheduling
        self._threads: list[threading.Thread] = []
        self._looks = ThreadPoolExecutor(LOOKS_AT_ONCE, "schedule")
        self._looked_at: set[str] = set()
        self._recovered = float("-inf")
        self._wake, self._wake_cleaner = threading.Event(), threading.Event()

    def launch(self) -> None:
        """Starts the threads."""
        works = (
            ("schedules", self._wake, self._start_looks, self._until_due),
            ("clean-up", self._wake_cleaner, self._clean_up, self._until_recovery),
        )
        for name, wake, *work in works:
            for topic in TOPICS:
                news_of(self.scheduling.database).wake(topic, wake.set)
            thread = threading.Thread(
                target=self._repeat, args=(wake, *work), name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stops the threads; a step that is being linked is left for the next server."""
        self.scheduling.stopping.set()
        self._wake.set()
        self._wake_cleaner.set()
        for thread in self._threads:
            thread.join()
        self._looks.shutdown(cancel_futures=True)

    def _repeat(
        self, wake: threading.Event, work: Callable[[], bool], pause: Callable[[], float]
    ) -> None:
        """Works at once when it is woken, and after a pause."""
        begun = float("-inf")
        while not self.scheduling.stopping.wait(max(0.0, begun + LOOK_SECONDS - time.monotonic())):
            begun = time.monotonic()
            wake.clear()
            if work():
                wake.wait(pause())
            else:
                self.scheduling.stopping.wait(AFTER_FAILURE_SECONDS)

    def _start_looks(self) -> bool:
        return self._logged(self._start_due, "cannot find out which schedules are due")

    def _start_due(self) -> None:
        for stored in due(self.scheduling, clock_of(self.scheduling.database).now()):
            # Against a second look while a directory is slow: it finds the same steps.
            if stored.name not in self._looked_at:
                self._looked_at.add(stored.name)
                self._looks.submit(self._look, stored)

    def _look(self, stored: StoredSchedule) -> None:
        now = clock_of(self.scheduling.database).now()
        what = f"cannot look at the schedule {stored.name}"
        if not self._logged(lambda: look(self.scheduling, stored, now), what):
            self.scheduling.stopping.wait(AFTER_FAILURE_SECONDS)  # it is due still
        self._looked_at.discard(stored.name)
        self._wake.set()  # its next look has its time only now

    def _clean_up(self) -> bool:
        done = [
            self._logged(self._recover, "cannot recover what dead processes left"),
            self._logged(lambda: settle(self.scheduling), "cannot settle ended runs"),
        ]
        return all(done)

    def _until_recovery(self) -> float:
        return min(news_of(self.scheduling.database).look_seconds, RECOVER_SECONDS)

    def _until_due(self) -> float:
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


def due(scheduling: Scheduling, now: float) -> list[StoredSchedule]:
    """The schedules that are due; cron schedules first, since they look at one folder at most."""
    found = schedules.due(scheduling.database, now)
    return sorted(found, key=lambda stored: not isinstance(stored.body.when, Clock))


def look(scheduling: Scheduling, stored: StoredSchedule, now: float) -> None:
    """Runs a schedule that is due; pauses it if its token lost its rights."""
    when = stored.body.when
    try:
        if isinstance(when, Clock):
            tick(scheduling, stored, when, now)
        else:
            poll(scheduling, stored, when, now)
    except UnfitError as unfit:
        pause_unfit(scheduling, stored, unfit)


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
