"""PostgreSQL connections with a time limit for every wait.

A network that silently drops packets lets a client wait for ever. TCP's own limits do not help behind a proxy, which
acknowledges packets itself, and the server counts ``statement_timeout`` only once it has received the statement.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

ANSWER_SECONDS = 4.0
"""Seconds that a server may take to answer one statement; leases are longer."""

CONNECT_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": int(ANSWER_SECONDS),
    "tcp_user_timeout": int(ANSWER_SECONDS * 1000),
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself and raises OperationalError if the server does not answer in time.

    Attributes:
        answer_seconds: time limit of an answer; None for no limit.
    """

    answer_seconds: float | None = ANSWER_SECONDS

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Like upstream, which resumes ``gen`` whenever data arrive, and at least every tenth of a second."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        start = time.monotonic()
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                self._refuse_late(time.monotonic() - start)
                waits_for = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _refuse_late(self, waited: float) -> None:
        if self.answer_seconds is not None and waited > self.answer_seconds:
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} s")


@contextmanager
def without_time_limits(connection: sa.Connection) -> Iterator[None]:
    """Lifts the time limits of a transaction within the block; for migrations."""
    driver = connection.connection.dbapi_connection
    if not isinstance(driver, BoundedConnection):
        yield
        return
    driver.answer_seconds = None
    connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    try:
        yield
    finally:
        driver.answer_seconds = ANSWER_SECONDS
