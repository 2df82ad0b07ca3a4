"""One writer at a time for SQLite, in the order of asking.

SQLite lets one transaction write. Who finds it taken sleeps and tries again, longer each time, so that
the last to come is often first, and some wait for seconds. Within this process each waits for its turn
instead; writers of other processes still meet SQLite's own lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from reshard_server.db.notify import news_of, taken_back


class Turns:
    """A lock that is handed on in the order in which it was asked for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for its turn; the next one has it afterwards."""
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
    """An engine whose transactions (``begin``) take turns; ``connect`` is for reading, which waits for nobody."""

    def __init__(self, made: sa.Engine) -> None:
        super().__init__(made.pool, made.dialect, made.url, hide_parameters=made.hide_parameters)
        self._turns = Turns()

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction, once it is its turn."""
        with self._turns.turn():
            told: set[str] = set()
            with super().begin() as connection:
                taken_back(connection)  # of a transaction that was undone
                yield connection
                told = taken_back(connection)
        if told:
            news_of(self).spread(told)
