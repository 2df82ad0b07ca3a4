"""The lease of this process: a heartbeat every other second, and the take-over from processes without one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard_server.db.clock import now_of
from reshard_server.db.conversions import claims, executors
from reshard_server.errors.database_errors import Unavailable, unavailable
from reshard_server.host_clock import host_seconds

LOG = logging.getLogger(__name__)

LONGEST_BEAT_SECONDS = 2.0
BEATS_OF_A_LEASE = 4
"""A process counts as dead after this many missed heartbeats."""


@dataclass
class Lease:
    """The heartbeat of one executor.

    Other processes take this one for dead once the database has confirmed no heartbeat for ``lease_seconds``. All
    its work ends before that: ``ends_at`` counts from when the last confirmed heartbeat was sent.

    Attributes:
        is_mine: true for a claim that this process works on, or is about to win. Other claims that the records give
            to this process are queued again.
        ends_at: the end of the lease unless it is renewed, by ``host_seconds``.
        refused: the reason why the database took no heartbeat, if it answers but refuses changes.
        on_requeued: called after conversions were queued again, so that they are claimed at once.
    """

    db: sa.Engine
    executor: str
    lease_seconds: float
    is_mine: Callable[[str], bool]
    on_requeued: Callable[[], None]
    ends_at: float = 0.0
    refused: Unavailable | None = None
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Sends one heartbeat at once, and further ones from a thread."""
        self._send_heartbeat()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = min(LONGEST_BEAT_SECONDS, self.lease_seconds / BEATS_OF_A_LEASE)
        while not self._ending.wait(pause):
            try:
                self.beat()
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("cannot renew the lease: %s", error)
                found = unavailable(error)
                self.refused = found if found is not None and found.takes_no_changes else None

    def beat(self) -> None:
        """Sends one heartbeat, and queues the conversions of silent processes again."""
        self._send_heartbeat()
        heard_after = now_of(self.db) - self.lease_seconds
        number = claims.take_from_silent(self.db, heard_after, self.executor, self.is_mine)
        if number:
            LOG.warning("queued %d conversions again that no live process carried out", number)
            self.on_requeued()

    def _send_heartbeat(self) -> None:
        sent = host_seconds()
        executors.beat(self.db, self.executor)
        self.ends_at = sent + self.lease_seconds
        self.refused = None

    def end(self) -> None:
        """Ends the heartbeats; other processes may take conversions that this one still has."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        try:
            executors.leave(self.db, self.executor)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot end the lease; it will run out: %s", error)
