"""One connection to PostgreSQL that receives the notifications of other replicas.

A thread waits for notifications. If none arrives for a while, it sends the server a statement, within the limits of
``bounded_connection``, to notice a dead connection. Without a connection all waiters poll often. Once a new connection
listens, all waiters look once, so that no notification is missed.
"""

from __future__ import annotations

import logging
import os
import select
import threading

import psycopg
import sqlalchemy as sa

from reshard_server.db.bounded_connection import CONNECT_ARGUMENTS, BoundedConnection
from reshard_server.db.notify import CHANNEL, TOPICS, news_of

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
