"""The work that waits and runs now, over all hosts: what metrics and autoscalers read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import sqlalchemy as sa

from reshard_server.db.conversions.claims import CLAIMED, is_claimable
from reshard_server.db.conversions.executors import live_hosts
from reshard_server.db.conversions.part_states import sums
from reshard_server.db.tables import CONVERSIONS
from reshard_server.schemas.conversion import ProgressState

_C = CONVERSIONS.c

MOST_HOSTS = 200
"""Hosts with series of their own, so that series stay few; the others share ``other``."""

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Workload:
    """The work that waits and runs now.

    Attributes:
        waiting: conversions, parts and commits that wait for a place on a host.
        parts: of conversions that have not ended, by state.
        moved_bytes: so far, by conversions that run.
        left_bytes: that these have still to move, as far as their plans are made.
        bytes_per_second: of all that runs.
        slots: of live hosts, by name: what each runs at once.
        running: by the name of a live host: what it runs now.
    """

    waiting: int
    parts: dict[str, int]
    moved_bytes: int
    left_bytes: int
    bytes_per_second: float
    slots: dict[str, int]
    running: dict[str, int]


def workload(db: sa.Engine) -> Workload:
    """The present workload; one query of the conversions that run, and one of their parts."""
    with db.connect() as connection:
        waiting = connection.scalar(sa.select(sa.func.count()).where(is_claimable(_C))) or 0
        unended = sa.select(_C.id, _C.parts, _C.progress).where(
            _C.state.in_(CLAIMED), _C.parent.is_(None)
        )
        rows = connection.execute(unended).all()
        found = sums(connection, [row.id for row in rows if row.parts is not None])
        slots, running = _hosts(connection)
    reached = []
    for row in rows:
        if row.progress:
            own = ProgressState.model_validate(row.progress)
            reached.append(found[row.id].progress(own) if row.id in found else own)
    parts: Counter[str] = Counter()
    for one in found.values():
        parts.update(one.counts)
    return Workload(
        waiting,
        dict(parts),
        sum(one.moved_bytes for one in reached),
        sum(max(0, one.total_bytes - one.moved_bytes) for one in reached),
        sum(one.bytes_per_second or 0.0 for one in reached),
        slots,
        running,
    )


def _hosts(connection: sa.Connection) -> tuple[dict[str, int], dict[str, int]]:
    slots: Counter[str] = Counter()
    for host in live_hosts(connection):
        slots[host.name if host.name in slots or len(slots) < MOST_HOSTS else OTHER] += host.slots
    query = sa.select(_C.host, sa.func.count()).where(_C.claim.is_not(None), _C.state.in_(CLAIMED))
    running: Counter[str] = Counter(dict.fromkeys(slots, 0))
    for host, many in connection.execute(query.group_by(_C.host)):
        running[host if host in slots else OTHER] += many
    return dict(slots), dict(running)
