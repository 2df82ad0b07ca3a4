"""Places in the queue: the order in which waiting conversions are claimed, as it stands now.

The place of a waiting conversion follows from each token's running and waiting conversions and the time of its last turn. A
token that runs R conversions is at level R. The lowest level is next, and each start lifts its token by one level. The r-th
waiting conversion of a token therefore starts at level R + r - 1. All conversions that start at lower levels come before it. At
its own level, one conversion of each token with an older turn comes before it too. The place is an estimate: conversions may end
in between, and tokens may be at their limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from reshard_server.db.conversions.claims import CLAIMED
from reshard_server.db.tables import CONVERSIONS, TURNS
from reshard_server.schemas.conversion import Conversion

_C = CONVERSIONS.c

_ORDER = (_C.priority.desc(), _C.created_at, _C.id)
"""The order of one token's conversions."""

Head = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token with conversions in the queue.

    Attributes:
        running: the number of its running conversions.
        queued: the number of its waiting conversions.
        turn: number of its last turn; 0 for none.
        head: the sort key of its first conversion in the queue.
    """

    running: int
    queued: int
    turn: int
    head: Head

    def is_before(self, other: _Waiting) -> bool:
        """True if this token's turn comes first when both are at one level."""
        if self.running != other.running:  # the lower one needs a turn to reach this level
            return self.running > other.running
        return (self.turn, self.head) < (other.turn, other.head)

    def starts_before(self, other: _Waiting, rank: int) -> int:
        """The number of conversions that this token starts before the other token's conversion of this rank."""
        level = other.running + rank - 1
        if self.running > level:
            return 0
        return min(self.queued, level - self.running + self.is_before(other))


def places(db: sa.Engine, conversions: Iterable[Conversion]) -> dict[str, int]:
    """The place of each queued conversion, by id; 1 is next."""
    ids = [c.id for c in conversions if c.state == "queued"]
    if not ids:
        return {}
    with db.connect() as connection:
        ranks = connection.execute(_ranks(ids)).all()
        waiting = _waiting(connection) if ranks else {}
    by_id = {}
    for row in ranks:
        own = waiting.get(row.token)
        if own is not None:
            others = (other for token, other in waiting.items() if token != row.token)
            by_id[row.id] = row.rank + sum(o.starts_before(own, row.rank) for o in others)
    return by_id


def _ranks(ids: Collection[str]) -> sa.Select[tuple[str, str, int]]:
    """The rank of each conversion among those of its own token."""
    tokens = sa.select(_C.token).where(_C.id.in_(ids)).distinct()
    rank = sa.func.row_number().over(partition_by=_C.token, order_by=_ORDER).label("rank")
    ranked = (
        sa.select(_C.id, _C.token, rank)
        .where(_C.state == "queued", _C.token.in_(tokens))
        .subquery()
    )
    return sa.select(ranked.c.id, ranked.c.token, ranked.c.rank).where(ranked.c.id.in_(ids))


def _waiting(connection: sa.Connection) -> dict[str, _Waiting]:
    running = _counts(connection, _C.claim.is_not(None), _C.state.in_(CLAIMED))
    queued = _counts(connection, _C.state == "queued")
    turns = {row.token: row.number for row in connection.execute(sa.select(TURNS))}
    number = sa.func.row_number().over(partition_by=_C.token, order_by=_ORDER).label("number")
    ranked = (
        sa.select(_C.token, _C.priority, _C.created_at, _C.id, number)
        .where(_C.state == "queued")
        .subquery()
    )
    heads = connection.execute(sa.select(ranked).where(ranked.c.number == 1)).all()
    return {
        row.token: _Waiting(
            running.get(row.token, 0),
            queued.get(row.token, 0),
            turns.get(row.token, 0),
            (-row.priority, row.created_at, row.id),
        )
        for row in heads
    }


def _counts(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> dict[str, int]:
    """The number of conversions and parts of each token that are so."""
    query = sa.select(_C.token, sa.func.count().label("many")).where(*where)
    return {row.token: row.many for row in connection.execute(query.group_by(_C.token))}
