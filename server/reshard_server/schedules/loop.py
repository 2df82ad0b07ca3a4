"""The loop that runs all schedules, in one thread of the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.notify import TOPICS, news_of
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.database_errors import unavailable
from reshard_server.observability.audit import audit
from reshard_server.schedules.cron import microsecond_text
from reshard_server.schedules.run_cron import tick
from reshard_server.schedules.scheduling import Scheduling, UnfitError
from reshard_server.schedules.settle_runs import recover, settle
from reshard_server.schedules.watch_steps import poll
from reshard_server.schemas.schedule import Clock

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
        try:
            _tick(scheduling, stored, now)
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


def _tick(scheduling: Scheduling, stored: StoredSchedule, now: float) -> None:
    when = stored.body.when
    if isinstance(when, Clock):
        tick(scheduling, stored, when, now)
    else:
        poll(scheduling, stored, when, now)
