"""PostgreSQL connections on which no wait is endless.

A network that drops packets without a word lets a client wait for ever: TCP's own limits do not help behind a proxy,
which answers for the network, and ``statement_timeout`` is counted by a server that never got the statement.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

ANSWER_SECONDS = 4.0
"""How long a server may take to answer one statement; a lease is longer."""

CONNECT_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": int(ANSWER_SECONDS),
    "tcp_user_timeout": int(ANSWER_SECONDS * 1000),
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed, with an OperationalError, where the server does not answer in time.

    Attributes:
        answer_seconds: how long it may take; None waits for as long as it takes.
    """

    answer_seconds: float | None = ANSWER_SECONDS

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream, which asks ``gen`` whenever something has come, and every tenth of a second besides."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        begun = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                self._refuse_late(time.monotonic() - begun)
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _refuse_late(self, waited: float) -> None:
        if self.answer_seconds is not None and waited > self.answer_seconds:
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} s")


@contextmanager
def waiting_as_long_as_it_takes(connection: sa.Connection) -> Iterator[None]:
    """Lifts the limits of a connection in a transaction until the block ends; for migrations."""
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
