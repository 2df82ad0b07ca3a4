"""Connections to the records: time limits, notifications between processes, and one writer of SQLite at a time.

A network that silently drops packets lets a client wait for ever. TCP's own limits do not help behind a proxy, which
acknowledges packets itself, and the server counts ``statement_timeout`` only once it has received the statement. So
``BoundedConnection`` limits every wait for PostgreSQL.

A writer reports a change of the records, and waiting readers look at once. With SQLite a notification goes to the threads of
this process after the transaction has committed. With PostgreSQL it is a NOTIFY of the transaction, which reaches every replica
that listens, including this one. It is only a hint: waiters also poll, rarely while notifications arrive reliably. The thread of
``Listener`` sends the server a statement if no notification arrives for a while, to notice a dead connection. Once a new
connection listens, all waiters look once, so that no notification is missed.

SQLite lets one transaction write. A writer that finds the lock taken sleeps and retries, longer each time, so the last
writer is often served first, and some wait for seconds. So writers of this process queue (``OneWriterEngine``); those of other
processes still compete for SQLite's own lock.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast, get_args

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
                limit, waited = self.answer_seconds, time.monotonic() - start
                if limit is not None and waited > limit:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {limit:g} s")
                waits_for = gen.send(ready)
        except StopIteration as end:
            return end.value


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


Topic = Literal["conversions", "schedules", "deliveries"]
"""conversions: one was queued or has ended. schedules: one was stored or resumed. deliveries: one is due."""

TOPICS: tuple[Topic, ...] = get_args(Topic)

CHANNEL = "reshard"
"""PostgreSQL's channel of the notifications."""

LOOK_SECONDS = 1.0
"""Between two polls while notifications are not reliable."""

SELDOM_SECONDS = 15.0
"""Between two polls while notifications arrive."""

_OPTION = "records_news"
_PENDING = "news_of_transaction"


class News:
    """Calls waiters when there is news.

    Attributes:
        is_reliable: True if notifications of all processes arrive; otherwise waiters poll often.
    """

    def __init__(self) -> None:
        self.is_reliable = False
        self._waiting: list[tuple[Topic, Callable[[], None]]] = []

    @property
    def look_seconds(self) -> float:
        """Seconds between two polls."""
        return SELDOM_SECONDS if self.is_reliable else LOOK_SECONDS

    def wake(self, topic: Topic, call: Callable[[], None]) -> None:
        """Registers a function to call, from any thread, on each notification of a topic; it must be quick."""
        self._waiting.append((topic, call))

    def spread(self, topics: Iterable[str]) -> None:
        """Calls every waiter for one of the topics."""
        changed = set(topics)
        for topic, call in list(self._waiting):
            if topic in changed:
                call()


def give_news(db: sa.Engine) -> News:
    """Attaches news to an engine and its connections; ``news_of`` returns them."""
    news = News()
    db.update_execution_options(**{_OPTION: news})
    return news


def news_of(db: sa.Engine | sa.Connection) -> News:
    """The news of these records."""
    return cast("News", db.get_execution_options()[_OPTION])


def notify(connection: sa.Connection, topic: Topic) -> None:
    """Reports a change within a transaction; waiters are called once it has committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY, {"topic": topic})
    else:
        connection.info.setdefault(_PENDING, set()).add(topic)


_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("topic", type_=sa.Text)))


def withdrawn(connection: sa.Connection) -> set[str]:
    """Takes the pending notifications of a transaction on SQLite; the caller spreads or drops them."""
    return cast("set[str]", connection.info.pop(_PENDING, set()))


LOG = logging.getLogger(__name__)

ASK_SECONDS = 10.0
"""After this long without a notification the server is asked whether it lives."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
"""Before another connection is tried; the pause doubles each time."""


class Listener:
    """Receives notifications as long as the server runs."""

    def __init__(self, db: sa.Engine) -> None:
        self._db, self._news = db, news_of(db)
        self._ending = threading.Event()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="news", daemon=True)

    def launch(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ending.set()
        os.write(self._stop_write, b"x")
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            try:
                connection = self._connect()
                pause = FIRST_PAUSE_SECONDS
                with connection:
                    self._receive(connection)
            except (sa.exc.SQLAlchemyError, psycopg.Error, OSError) as error:
                LOG.warning("cannot receive notifications of other servers: %s", error)
            finally:
                self._news.is_reliable = False
                self._news.spread(TOPICS)  # waiters poll more often from now on
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _connect(self) -> BoundedConnection:
        """A connection of its own that listens."""
        given, named = self._db.dialect.create_connect_args(self._db.url)
        arguments = {**named, **CONNECT_ARGUMENTS, "autocommit": True}
        connection = BoundedConnection.connect(*given, **arguments)
        connection.add_notify_handler(
            lambda notification: self._news.spread([notification.payload])
        )
        connection.execute(f"LISTEN {CHANNEL}")
        return connection

    def _receive(self, connection: BoundedConnection) -> None:
        self._news.is_reliable = True
        self._news.spread(TOPICS)
        readable = select.poll()
        readable.register(connection.fileno(), select.POLLIN)
        readable.register(self._stop_read, select.POLLIN)
        while not self._ending.is_set():
            readable.poll(ASK_SECONDS * 1000)
            if not self._ending.is_set():
                connection.execute("")  # passes on notifications; fails on a dead connection


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
