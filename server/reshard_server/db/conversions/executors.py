"""Executors: the processes that carry conversions out, and the last heartbeat of each.

Times are the database's, so that the clocks of hosts need not agree.
"""

from __future__ import annotations

import os
import socket

import sqlalchemy as sa

from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.tables import EXECUTORS
from reshard_server.host_clock import host_seconds

FORGOTTEN_SECONDS = 3600.0
"""Seconds that rows of dead executors are kept, for investigations."""

_E = EXECUTORS.c


def beat(db: sa.Engine, executor: str) -> None:
    """Records a heartbeat, and sets the records' clock by the database's answer."""
    now = now_of(db)
    with db.begin() as connection:
        heartbeat = EXECUTORS.update().where(_E.id == executor).values(heartbeat_at=now)
        before = host_seconds()
        recorded_at = connection.scalar(heartbeat.returning(_E.heartbeat_at))
        if recorded_at is not None:
            clock_of(db).learn(recorded_at, before)
        else:
            row = {"id": executor, "host": socket.gethostname(), "pid": os.getpid()}
            connection.execute(EXECUTORS.insert().values(**row, heartbeat_at=now))
        connection.execute(EXECUTORS.delete().where(_E.heartbeat_at < now - FORGOTTEN_SECONDS))


def leave(db: sa.Engine, executor: str) -> None:
    """Removes this process, which ends."""
    with db.begin() as connection:
        connection.execute(EXECUTORS.delete().where(_E.id == executor))


def forget_all(db: sa.Engine) -> None:
    """Removes all executors; for a process that is the only one."""
    with db.begin() as connection:
        connection.execute(EXECUTORS.delete())
