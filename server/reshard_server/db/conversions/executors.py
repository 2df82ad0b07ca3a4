"""Executors: the processes that carry conversions out, their heartbeats, and what their hosts have.

A conversion may ask for memory and for labels. One that no live host has waits, and its answer says for what.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard.geometry.sizes import shortest_bytes
from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.tables import EXECUTORS
from reshard_server.host_clock import host_seconds

FORGOTTEN_SECONDS = 3600.0
"""Seconds that rows of dead executors are kept, for investigations."""

HEARD_SECONDS = 60.0
"""A host counts as live for readers this long after a heartbeat; heartbeats come every other second."""

_E = EXECUTORS.c


@dataclass(frozen=True, slots=True)
class Host:
    """A host that carries conversions out.

    Attributes:
        max_memory: most bytes that one conversion may ask of it; None for one of a version that does not say it.
        slots: conversions and parts that it runs at once.
    """

    max_memory: int | None = None
    slots: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=socket.gethostname)

    def label_texts(self) -> list[str]:
        """The labels as they are recorded."""
        return label_texts(self.labels)

    def has(self, max_memory: int | None, labels: Iterable[str]) -> bool:
        """True if it has this memory and these labels, or does not say what it has."""
        if self.max_memory is None:
            return True
        return (max_memory or 0) <= self.max_memory and set(labels) <= set(self.label_texts())


def label_texts(labels: Mapping[str, str]) -> list[str]:
    """Labels as ``conversion_needs`` has them."""
    return [f"{key}={value}" for key, value in labels.items()]


def beat(db: sa.Engine, executor: str, host: Host | None = None) -> None:
    """Records a heartbeat, and sets the records' clock by the database's answer."""
    now = now_of(db)
    with db.begin() as connection:
        heartbeat = EXECUTORS.update().where(_E.id == executor).values(heartbeat_at=now)
        before = host_seconds()
        recorded_at = connection.scalar(heartbeat.returning(_E.heartbeat_at))
        if recorded_at is not None:
            clock_of(db).learn(recorded_at, before)
        else:
            host = host or Host()
            row = {"id": executor, "host": host.name, "pid": os.getpid()}
            row |= {"max_memory": host.max_memory, "slots": host.slots, "labels": {**host.labels}}
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


def live_hosts(connection: sa.Connection) -> list[Host]:
    """A host for each process that was heard of lately."""
    query = sa.select(EXECUTORS).where(_E.heartbeat_at >= now_of(connection.engine) - HEARD_SECONDS)
    return [
        Host(row.max_memory, row.slots or 0, row.labels or {}, row.host)
        for row in connection.execute(query)
    ]


def waiting_for(
    connection: sa.Connection, max_memory: int | None, labels: Mapping[str, str]
) -> str | None:
    """The words for a host that a conversion waits for; None if a live one has what it asks for."""
    if max_memory is None and not labels:
        return None
    hosts, texts = live_hosts(connection), label_texts(labels)
    if any(host.has(max_memory, texts) for host in hosts):
        return None
    memory = [] if max_memory is None else [f"max_memory of {shortest_bytes(max_memory)} or more"]
    labelled = [f"the label {text}" for text in texts]
    return (
        f"a host with {' and '.join(memory + labelled)}; of the {len(hosts)} that are live none has that: start one "
        "(reshard work), or cancel the conversion and ask for less"
    )


def slots_for(db: sa.Engine, max_memory: int, labels: Mapping[str, str]) -> int:
    """The parts that all live hosts together run at once, of a conversion that asks for this."""
    with db.connect() as connection:
        hosts = live_hosts(connection)
    return sum(host.slots for host in hosts if host.has(max_memory, label_texts(labels)))
