"""The loop that looks after every schedule, in one thread of the server."""

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
from reshard_server.schedules.cron import exactly_written
from reshard_server.schedules.run_cron import tick
from reshard_server.schedules.scheduling import Scheduling, UnfitError
from reshard_server.schedules.settle_runs import recover, settle
from reshard_server.schedules.watch_steps import poll
from reshard_server.schemas.schedule import Clock

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Between two looks at what is due, at least."""

AFTER_FAILURE_SECONDS = 2.0

RECOVER_SECONDS = 5.0
"""Between two looks at what dead processes left."""


class Ticking:
    """Looks after the schedules as long as the server runs."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.scheduling = scheduling
        self._thread: threading.Thread | None = None
        self._recovered = float("-inf")
        self._wake = threading.Event()

    def launch(self) -> None:
        """Begins, with what was left when the last server ended."""
        for topic in TOPICS:
            news_of(self.scheduling.database).wake(topic, self._wake.set)
        self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Starts nothing more; a step that is being held is left for the next server."""
        self.scheduling.stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self.scheduling.stopping.wait(LOOK_SECONDS):
            self._wake.clear()
            done = [
                self._try(self._recover, "cannot look after what was left"),
                self._try(lambda: settle(self.scheduling), "cannot settle what has ended"),
                self._try(self._tick, "cannot look at schedules"),
            ]
            if all(done):
                self._wake.wait(self._pause())
            else:
                self.scheduling.stopping.wait(AFTER_FAILURE_SECONDS)

    def _pause(self) -> float:
        """Until a schedule is due, at the latest until it is time to look whatever was told."""
        db = self.scheduling.database
        longest = news_of(db).look_seconds
        try:
            now = clock_of(db).now()
            due = schedules.next_due(db, now)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot look when schedules are due: %s", error)
            return AFTER_FAILURE_SECONDS
        return longest if due is None else min(longest, due - now)

    def _tick(self) -> None:
        tick_all(self.scheduling, clock_of(self.scheduling.database).now())

    def _recover(self) -> None:
        if time.monotonic() - self._recovered > RECOVER_SECONDS:
            recover(self.scheduling)
            self._recovered = time.monotonic()

    def _try(self, look: Callable[[], None], what: str) -> bool:
        """Goes on whatever happens: a database that is out of reach comes back, and other schedules wait."""
        try:
            look()
        except Exception as error:
            if unavailable(error) is None:
                LOG.exception(what)
            else:
                LOG.warning("%s: %s", what, error)
            return False
        return True


def tick_all(scheduling: Scheduling, now: float) -> None:
    """Looks at every schedule whose time has come; those of the clock first, which wait for no disk."""
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
    """Pauses a schedule whose token may not any more, and says so in its history."""
    now = clock_of(scheduling.database).now()
    if schedules.set_paused(scheduling.database, stored, now, paused=True) is None:
        return
    LOG.warning("the schedule %s is paused: %s", stored.name, unfit)
    audit("paused", caller=stored.token, resource=f"/v1/schedules/{stored.name}", detail=str(unfit))
    with scheduling.database.begin() as connection:
        key = f"paused {exactly_written(now)}"
        schedule_runs.note(connection, stored.name, key, "paused", detail=str(unfit))


def _tick(scheduling: Scheduling, stored: StoredSchedule, now: float) -> None:
    when = stored.body.when
    if isinstance(when, Clock):
        tick(scheduling, stored, when, now)
    else:
        poll(scheduling, stored, when, now)
