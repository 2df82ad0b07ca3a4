"""One SQLite writer at a time, in the order of arrival.

SQLite lets one transaction write. A writer that finds the lock taken sleeps and retries, longer each time, so the last
writer is often served first, and some wait for seconds. Within this process writers queue instead; writers of other
processes still compete for SQLite's own lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from reshard_server.db.notify import news_of, withdrawn


class Turns:
    """A lock that is passed on in the order of arrival."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for its turn, and passes it on afterwards."""
        self._wait()
        try:
            yield
        finally:
            self._hand_on()

    def _wait(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            self._waiting.append(mine)
        mine.acquire()

    def _hand_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class OneWriterEngine(sa.Engine):
    """An engine whose transactions (``begin``) take turns; ``connect`` is for reading and waits for nothing."""

    def __init__(self, made: sa.Engine) -> None:
        super().__init__(made.pool, made.dialect, made.url, hide_parameters=made.hide_parameters)
        self._turns = Turns()

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction, as soon as it is its turn."""
        with self._turns.turn():
            pending: set[str] = set()
            with super().begin() as connection:
                withdrawn(connection)  # of a transaction that was rolled back
                yield connection
                pending = withdrawn(connection)
        if pending:
            news_of(self).spread(pending)
