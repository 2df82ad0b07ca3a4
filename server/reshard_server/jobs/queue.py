"""The queue: claims conversions that wait, and runs each in a thread of its own; and the lease of this process.

The conversions' table is the queue; there is no second record that could disagree with it. A queued row waits, a
running row names its process, and the conversions of a dead process are queued again. So every accepted conversion is
carried out, even if servers die meanwhile. One thread claims the next row; each conversion gets a thread that stays
with its child process.

The lease is a heartbeat every other second. A process takes over from those without one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard_server.auth.root_paths import Roots
from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.connections import LOOK_SECONDS, news_of
from reshard_server.db.conversions import claims, created, executors, rows
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.executors import Host
from reshard_server.errors.error_handlers import Unavailable, unavailable
from reshard_server.host_clock import host_seconds
from reshard_server.jobs.attempt import OwnClaim
from reshard_server.jobs.conversion_job import run_conversion
from reshard_server.observability.logs import about_conversion
from reshard_server.settings import Settings
from reshard_server.worker.children import Children

LOG = logging.getLogger(__name__)

RETENTION_SECONDS = 3600.0


class JobQueue:
    """Carries conversions and parts of them out in this process, as many at once as the settings allow.

    Attributes:
        executor: id of this process in the records.
    """

    def __init__(
        self, settings: Settings, database: sa.Engine, roots: Roots, children: Children
    ) -> None:
        self.executor = uuid.uuid4().hex
        self._settings, self._db, self._roots = settings, database, roots
        self._children = children
        self._host = Host(settings.max_memory, settings.running, settings.labels)
        self._draining, self._wake = threading.Event(), threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._left_to_others: set[str] = set()  # conversions for a server of another version
        self._claims: set[str] = set()  # claims of this process, or about to be won
        self._lease = Lease(
            database,
            self.executor,
            settings.lease_seconds,
            self._claims.__contains__,
            self._wake.set,
            self._host,
        )
        self._thread: threading.Thread | None = None
        self._cleaned_at = float("-inf")

    @property
    def lease_ends(self) -> float:
        """The end of this process's lease unless it is renewed, by ``host_seconds``."""
        return self._lease.ends_at

    @property
    def refused(self) -> Unavailable | None:
        """The reason why the database took no heartbeat, if it answers but refuses changes."""
        return self._lease.refused

    @property
    def running(self) -> int:
        """The number of conversions that this process carries out now."""
        return len(self._threads)

    def launch(self) -> None:
        """Starts the heartbeats and the thread that claims; conversions of a dead process are resumed.

        With SQLite the caller has locked the state folder (``state_locked``), so there is no other executor.
        """
        self._children.launch()
        if self._settings.database_url is None:
            executors.forget_all(self._db)
        self._lease.start()
        self._lease.beat()
        news_of(self._db).wake("conversions", self._wake.set)
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Looks for queued conversions at once."""
        self._wake.set()

    def close(self) -> None:
        """Stops the children, and releases the conversions that they did not finish."""
        self._draining.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        for thread in list(self._threads.values()):
            thread.join()
        self._lease.end()

    def _run(self) -> None:
        while not self._draining.is_set():
            self._wake.clear()
            try:
                self._claim_all()
                self._clean()
            except (sa.exc.SQLAlchemyError, RuntimeError) as error:
                LOG.warning("cannot look for work: %s", error)
                self._wake.wait(LOOK_SECONDS)
            else:
                self._wake.wait(news_of(self._db).look_seconds)

    def _claim_all(self) -> None:
        while len(self._threads) < self._settings.running and not self._draining.is_set():
            if not self._claim_one():
                return

    def _claim_one(self) -> bool:
        """Claims the next conversion and starts it; False if there is none."""
        text = claims.new_claim_text()
        limit = self._settings.running_per_token
        self._claims.add(text)
        claim = None
        try:
            claim = claims.claim_next(
                self._db, self.executor, text, limit, self._left_to_others, self._host
            )
            if claim is not None:
                self._start(claim)
        finally:
            # Not won; or won although the answer was lost, which the lease notices.
            if text not in self._threads:
                self._claims.discard(text)
        return claim is not None

    def _start(self, claim: Claim) -> None:
        thread = threading.Thread(target=self._carry_out, args=(claim,), daemon=True)
        self._threads[claim.text] = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads
            del self._threads[claim.text]
            raise

    def _carry_out(self, claim: Claim) -> None:
        patience, lease = self._settings.lease_seconds, self._lease
        own = OwnClaim(self._db, claim, self._draining, patience, lambda: lease.ends_at)
        try:
            with about_conversion(claim.conversion):
                if not run_conversion(self._settings, self._roots, own, self._children):
                    self._left_to_others.add(claim.whole)
        finally:
            self._claims.discard(claim.text)
            del self._threads[claim.text]
            self._wake.set()

    def _clean(self) -> None:
        """Once an hour, forgets idempotency keys and conversions that ended long ago."""
        if time.monotonic() - self._cleaned_at < RETENTION_SECONDS:
            return
        self._cleaned_at = time.monotonic()
        created.forget_keys(self._db)
        if days := self._settings.keep_days:
            gone = rows.remove_ended(self._db, clock_of(self._db).now() - days * 86400)
            if gone:
                LOG.info("forgot %d conversions that ended more than %d days ago", gone, days)


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
        host: what the process says about its host.
    """

    db: sa.Engine
    executor: str
    lease_seconds: float
    is_mine: Callable[[str], bool]
    on_requeued: Callable[[], None]
    host: Host
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
        # Against a lease that ends later than others believe: it counts from before the request.
        sent = host_seconds()
        executors.beat(self.db, self.executor, self.host)
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
