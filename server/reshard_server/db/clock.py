"""The records' clock: the database's, so that the clocks of replicas' hosts need not agree.

Every time that is compared with a time of another replica comes from here. The database is asked from time to time; in
between, this host's monotonic clock counts on. With SQLite the records are on this host, and its clock is used.
"""

from __future__ import annotations

import threading
import time
from typing import cast

import sqlalchemy as sa

from reshard_server.host_clock import host_seconds

ASK_AGAIN_SECONDS = 60.0
"""Heartbeats ask more often; this is for processes without heartbeats."""

LEAST_STEP_SECONDS = 2e-6

_OPTION = "records_clock"


class DatabaseClock:
    """The database's clock."""

    def __init__(self, db: sa.Engine) -> None:
        self._db = db
        self._is_here = db.dialect.name == "sqlite"
        self._ahead = 0.0
        self._asked_at: float | None = None
        self._last = 0.0
        self._guard = threading.Lock()

    def now(self) -> float:
        """Seconds since 1970; each call returns a later time, even if rounded to microseconds."""
        seconds = self._read()
        with self._guard:
            self._last = max(seconds, self._last + LEAST_STEP_SECONDS)
            return self._last

    def _read(self) -> float:
        if self._is_here:
            return time.time()
        if self._asked_at is None or host_seconds() - self._asked_at > ASK_AGAIN_SECONDS:
            self.ask()
        return host_seconds() + self._ahead

    def ask(self) -> None:
        """Asks the database for its time."""
        if self._is_here:
            return
        with self._db.connect() as connection:
            before = host_seconds()
            seconds = connection.execute(sa.select(now_of(self._db))).scalar_one()
            self.learn(seconds, before)

    def learn(self, seconds: float, before: float) -> None:
        """Sets the clock by the database's answer to a question that was sent at ``before``, by ``host_seconds``."""
        if not self._is_here:
            self._asked_at = host_seconds()
            self._ahead = seconds - (before + self._asked_at) / 2


def give_clock(db: sa.Engine) -> None:
    """Attaches a clock to an engine and its connections; ``clock_of`` returns it."""
    db.update_execution_options(**{_OPTION: DatabaseClock(db)})


def clock_of(db: sa.Engine | sa.Connection) -> DatabaseClock:
    """The clock of the records."""
    return cast("DatabaseClock", db.get_execution_options()[_OPTION])


def now_of(db: sa.Engine) -> sa.ColumnElement[float]:
    """The SQL expression for the database's time, in seconds since 1970."""
    if db.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Float)
    return sa.func.unixepoch("subsec", type_=sa.Float)
