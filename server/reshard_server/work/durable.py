"""Durable: every conversion that was accepted is carried out, whatever dies meanwhile.

The conversions' table is the queue. There is no second record that could disagree with it: a row that is
queued waits, one that runs names who holds it, and what a dead process held is queued again. A thread
claims what is next, and each conversion gets a thread that stays with its child process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import uuid
from pathlib import Path

import sqlalchemy as sa

from reshard.errors import StorageError
from reshard_server.logs import about_conversion
from reshard_server.records import claims, executors, retention
from reshard_server.records.claims import Claim
from reshard_server.settings import Settings
from reshard_server.work.holding import Holding
from reshard_server.work.leases import Lease
from reshard_server.work.request import Roots
from reshard_server.work.series import Series

LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between looks for what other replicas queued; what this one queues is looked for at once."""

RETENTION_SECONDS = 3600.0
_LOCK_NAME = "server.lock"


class Durable:
    """Carries conversions out in this process, as many at once as the settings allow."""

    def __init__(self, settings: Settings, database: sa.Engine, roots: Roots) -> None:
        self.executor = uuid.uuid4().hex
        self._settings, self._db, self._roots = settings, database, roots
        self._draining, self._wake = threading.Event(), threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._lease = Lease(database, self.executor, settings.lease_seconds, self._wake.set)
        self._lock: int | None = None
        self._thread: threading.Thread | None = None
        self._cleaned = float("-inf")

    @property
    def running(self) -> int:
        """How many conversions this process carries out now."""
        return len(self._threads)

    def launch(self) -> None:
        """Begins; what a process that died left behind goes on.

        Raises StorageError where another server works on the same state folder.
        """
        if self._settings.database_url is None:
            self._lock = _lock_state(self._settings.state)
            executors.forget_all(self._db)  # we hold the lock: whoever they were, they are gone
        self._lease.start()
        self._lease.beat()
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
        self._thread.start()

    def enqueue(self, conversion_id: str, token: str, priority: int) -> None:  # noqa: ARG002
        """Looks for queued conversions at once; the row itself is what queues one."""
        self._wake.set()

    def close(self) -> None:
        """Stops the children, and hands what they did not finish to whoever comes next."""
        self._draining.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        for thread in list(self._threads.values()):
            thread.join()
        self._lease.end()
        if self._lock is not None:
            os.close(self._lock)

    def _run(self) -> None:
        while not self._draining.is_set():
            self._wake.clear()
            try:
                self._claim_all()
                self._clean()
            except (sa.exc.SQLAlchemyError, RuntimeError) as error:
                LOG.warning("cannot look for work: %s", error)
            self._wake.wait(POLL_SECONDS)

    def _claim_all(self) -> None:
        while len(self._threads) < self._settings.running and not self._draining.is_set():
            if not self._claim_one():
                return

    def _claim_one(self) -> bool:
        """Claims what is next and starts it; False where there is nothing."""
        text = claims.new_claim_text()
        limit = self._settings.running_per_token
        try:
            claim = claims.claim_next(self._db, self.executor, text, limit)
            if claim is None:
                return False
            self._start(claim)
        except BaseException:
            self._lease.given_up.add(text)  # it may have been won, though we were not told
            raise
        return True

    def _start(self, claim: Claim) -> None:
        thread = threading.Thread(target=self._carry_out, args=(claim,), daemon=True)
        self._threads[claim.text] = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads
            del self._threads[claim.text]
            raise

    def _carry_out(self, claim: Claim) -> None:
        holding = Holding(self._db, claim, self._draining, self._settings.lease_seconds)
        try:
            with about_conversion(claim.conversion):
                Series(self._settings, self._roots, holding).run()
        finally:
            self._lease.given_up.add(claim.text)
            del self._threads[claim.text]
            self._wake.set()

    def _clean(self) -> None:
        """Forgets conversions that ended long ago; from time to time."""
        days = self._settings.keep_days
        if days and time.monotonic() - self._cleaned > RETENTION_SECONDS:
            self._cleaned = time.monotonic()
            gone = retention.remove_ended(self._db, time.time() - days * 86400)
            if gone:
                LOG.info("forgot %d conversions that ended more than %d days ago", gone, days)


def _lock_state(state: Path) -> int:
    """Holds the state folder for this process alone."""
    path = state / _LOCK_NAME
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StorageError(
            f"another server (process {holder}) works on the state folder {str(state)!r}; end it, give this one its own "
            "folder (--state), or let both share a Postgres (database_url)"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
