"""Leases: this process says every other second that it lives, and takes over from those that went silent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard_server.records import claims, executors

LOG = logging.getLogger(__name__)

LONGEST_BEAT_SECONDS = 2.0
BEATS_OF_A_LEASE = 4
"""That many heartbeats must be missed before a process counts as dead."""


@dataclass
class Lease:
    """The heartbeat of one executor.

    Attributes:
        given_up: texts of this process's claims that it works on no more; where their rows still name
            them (the database was out of reach), they are queued again.
        taken: called after conversions were taken from the dead, so that they are claimed at once.
    """

    db: sa.Engine
    executor: str
    lease_seconds: float
    taken: Callable[[], None]
    given_up: set[str] = field(default_factory=set)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Beats once, so that no one takes this process for dead, and then goes on in a thread."""
        executors.beat(self.db, self.executor)
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = min(LONGEST_BEAT_SECONDS, self.lease_seconds / BEATS_OF_A_LEASE)
        while not self._ending.wait(pause):
            try:
                self.beat()
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("cannot renew the lease: %s", error)

    def beat(self) -> None:
        """One heartbeat, and a look for those who missed theirs."""
        executors.beat(self.db, self.executor)
        heard_after = executors.now_of(self.db) - self.lease_seconds
        given_up = tuple(self.given_up)
        number = claims.take_from_silent(self.db, heard_after, self.executor, given_up)
        self.given_up.difference_update(given_up)
        if number:
            LOG.warning("queued %d conversions again that nobody carried out", number)
            self.taken()

    def end(self) -> None:
        """No more heartbeats; whatever this process still holds may be taken."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        try:
            executors.leave(self.db, self.executor)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot end the lease, which will run out: %s", error)
