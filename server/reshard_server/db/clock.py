"""The records' clock: the database's, so that the clocks of replicas' hosts need not agree.

Whatever is compared with a time that another replica may have written is taken from here. The database is asked
from time to time; in between, this host's clock that nobody sets tells how much later it is. With SQLite the records
lie on this host, and so does their clock.
"""

from __future__ import annotations

import threading
import time
from typing import cast

import sqlalchemy as sa

from reshard_server.host_clock import host_seconds

ASKED_AGAIN_SECONDS = 60.0
"""Heartbeats ask more often; this is for processes without any."""

LEAST_STEP_SECONDS = 2e-6

_OPTION = "records_clock"


class Clock:
    """The database's clock."""

    def __init__(self, db: sa.Engine) -> None:
        self._db = db
        self._is_here = db.dialect.name == "sqlite"
        self._ahead = 0.0
        self._asked: float | None = None
        self._last = 0.0
        self._guard = threading.Lock()

    def now(self) -> float:
        """Seconds since 1970; later at each call, also where they are rounded to microseconds."""
        found = self._read()
        with self._guard:
            self._last = max(found, self._last + LEAST_STEP_SECONDS)
            return self._last

    def _read(self) -> float:
        if self._is_here:
            return time.time()
        if self._asked is None or host_seconds() - self._asked > ASKED_AGAIN_SECONDS:
            self.ask()
        return host_seconds() + self._ahead

    def ask(self) -> None:
        """Asks the database what time it is."""
        if self._is_here:
            return
        with self._db.connect() as connection:
            before = host_seconds()
            told = connection.execute(sa.select(now_of(self._db))).scalar_one()
            self.learn(told, before)

    def learn(self, told: float, before: float) -> None:
        """Takes what the database just told as its time; it was asked at ``before``, by ``host_seconds``."""
        if not self._is_here:
            self._asked = host_seconds()
            self._ahead = told - (before + self._asked) / 2


def give_clock(db: sa.Engine) -> None:
    """Gives an engine, and every connection of it, the clock that ``clock_of`` finds."""
    db.update_execution_options(**{_OPTION: Clock(db)})


def clock_of(db: sa.Engine | sa.Connection) -> Clock:
    """The clock of the records."""
    return cast("Clock", db.get_execution_options()[_OPTION])


def now_of(db: sa.Engine) -> sa.ColumnElement[float]:
    """The database's clock as it runs a statement, in seconds since 1970."""
    if db.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Float)
    return sa.func.unixepoch("subsec", type_=sa.Float)
