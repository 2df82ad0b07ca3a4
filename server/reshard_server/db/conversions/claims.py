"""Claims: the right of one process to carry a conversion out; the processes that have claims, and the places in the queue.

One statement wins a claim, and every later statement names it. So a process that was frozen and presumed dead changes
nothing when it thaws: the row has another claim by then. The same query gives tokens fair shares. Among the queued
conversions of tokens that run fewer than their limit, it takes the first by

1. the number that the token runs now, fewest first;
2. the token's last turn, longest ago first;
3. the priority, highest first;
4. the age, oldest first.

So the place of a waiting conversion follows from each token's running and waiting conversions and the time of its last turn. A
token that runs R conversions is at level R. The lowest level is next, and each start lifts its token by one level. The r-th
waiting conversion of a token therefore starts at level R + r - 1. All conversions that start at lower levels come before it. At
its own level, one conversion of each token with an older turn comes before it too. The place is an estimate: conversions may end
in between, and tokens may be at their limits.

The times of heartbeats are the database's, so that the clocks of hosts need not agree.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import sqlalchemy as sa

from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.connections import notify
from reshard_server.db.conversions.rows import count_ended, moved_bytes
from reshard_server.db.deliveries import announce
from reshard_server.db.tables import CONVERSIONS, EXECUTORS, TURNS
from reshard_server.host_clock import host_seconds
from reshard_server.schemas.conversion import Conversion, ProgressState

End = Literal["succeeded", "failed", "cancelled"]
ClaimedState = Literal["running", "cancelling"]
CLAIMED: tuple[ClaimedState, ...] = ("running", "cancelling")

TURN_KEY = 7_265_736_861_726_401
"""Postgres's advisory lock while a claim is won, so that limits apply over all replicas."""

_C = CONVERSIONS.c


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry a conversion out.

    Attributes:
        executor: id of the process that has it.
        text: the row names this text as long as the claim stands.
    """

    conversion: str
    executor: str
    text: str


def _whose_turn() -> sa.ScalarSelect[Any]:
    claimed = CONVERSIONS.alias()
    busy = (
        sa.select(claimed.c.token, sa.func.count().label("conversions"))
        .where(claimed.c.state.in_(CLAIMED))
        .group_by(claimed.c.token)
        .subquery()
    )
    waiting = CONVERSIONS.alias()
    running = sa.func.coalesce(busy.c.conversions, 0)
    return (
        sa.select(waiting.c.id)
        .join_from(waiting, busy, busy.c.token == waiting.c.token, isouter=True)
        .join(TURNS, TURNS.c.token == waiting.c.token, isouter=True)
        .where(
            waiting.c.state == "queued",
            running < sa.bindparam("most_of_a_token"),
            waiting.c.id.not_in(sa.bindparam("left", expanding=True)),
        )
        .order_by(
            running,
            sa.func.coalesce(TURNS.c.number, 0),
            waiting.c.priority.desc(),
            waiting.c.created_at,
            waiting.c.id,
        )
        .limit(1)
        .scalar_subquery()
    )


# Built once: building takes longer than SQLite's answer.
_CLAIM_NEXT = (
    CONVERSIONS.update()
    # Against two processes that choose the same row: only one of them finds it queued.
    .where(_C.id == _whose_turn(), _C.state == "queued")
    .values(
        state="running",
        executor=sa.bindparam("by"),
        claim=sa.bindparam("its_claim"),
        revision=_C.revision + 1,
    )
    .returning(_C.id, _C.token)
)
_NEXT_NUMBER = sa.select(sa.func.coalesce(sa.func.max(TURNS.c.number), 0) + 1).scalar_subquery()
_SET_TURN = TURNS.update().where(TURNS.c.token == sa.bindparam("of")).values(number=_NEXT_NUMBER)
_FIRST_TURN = TURNS.insert().values(token=sa.bindparam("of"), number=_NEXT_NUMBER)
# Against a process that was frozen and presumed dead: the row has the text of another claim by then.
_STANDING = (_C.id == sa.bindparam("of"), _C.claim == sa.bindparam("its_claim"))
_STATE = sa.select(_C.state).where(*_STANDING, _C.state.in_(CLAIMED))
_BEGIN_ATTEMPT = (
    CONVERSIONS.update()
    .where(*_STANDING, _C.state == "running")
    .values(
        attempts=_C.attempts + 1,
        started_at=sa.func.coalesce(_C.started_at, sa.bindparam("now")),
        revision=_C.revision + 1,
    )
    .returning(_C.attempts)
)
# Against the child of an earlier attempt that still runs: the row has another number by then.
_MAY_PUBLISH = sa.select(_C.id).where(
    *_STANDING, _C.state == "running", _C.attempts == sa.bindparam("number")
)
_SET_PROGRESS = (
    CONVERSIONS.update()
    .where(*_STANDING, _C.state.in_(CLAIMED))
    .values(
        progress=sa.bindparam("at", type_=sa.JSON),
        begun=sa.or_(_C.begun, sa.bindparam("has_moved", type_=sa.Boolean)),
        revision=_C.revision + 1,
    )
    .returning(_C.state)
)
_HAS_MOVED = sa.select(_C.begun).where(_C.id == sa.bindparam("of"))


def new_claim_text() -> str:
    """A text that no other claim has."""
    return secrets.token_hex(16)


def claim_next(
    db: sa.Engine, executor: str, text: str, running_per_token: int, left: Collection[str] = ()
) -> Claim | None:
    """Claims the next conversion and marks it running; None if none may start now.

    Args:
        left: conversions to leave to servers of another version.
    """
    values: dict[str, Any] = {"by": executor, "its_claim": text, "left": list(left)}
    values["most_of_a_token"] = running_per_token
    with db.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Against replicas that count the same token's conversions at once and both exceed its limit.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_KEY)))
        won = connection.execute(_CLAIM_NEXT, values).one_or_none()
        if won is None:
            return None
        if not connection.execute(_SET_TURN, {"of": won.token}).rowcount:
            connection.execute(_FIRST_TURN, {"of": won.token})
    return Claim(won.id, executor, text)


def begin_attempt(db: sa.Engine, claim: Claim) -> int | None:
    """Counts an attempt and returns its number; None if the claim is lost or the conversion to be cancelled."""
    with db.begin() as connection:
        named = {**_named(claim), "now": clock_of(db).now()}
        return cast("int | None", connection.execute(_BEGIN_ATTEMPT, named).scalar())


def may_publish(db: sa.Engine, claim: Claim, attempt: int) -> bool:
    """True if the claim stands, this is its latest attempt, and the conversion was not cancelled."""
    named = {**_named(claim), "number": attempt}
    with db.connect() as connection:
        return connection.execute(_MAY_PUBLISH, named).scalar() is not None


def set_progress(db: sa.Engine, claim: Claim, progress: ProgressState) -> ClaimedState | None:
    """Records progress; returns the state, or None if the claim is lost."""
    reached = {"at": progress.model_dump(mode="json"), "has_moved": progress.moved_bytes > 0}
    with db.begin() as connection:
        state = connection.execute(_SET_PROGRESS, {**_named(claim), **reached}).scalar()
    return cast("ClaimedState | None", state)


def state_of(db: sa.Engine, claim: Claim) -> ClaimedState | None:
    """The state: running, or cancelling; None if the claim is lost."""
    with db.connect() as connection:
        return cast("ClaimedState | None", connection.execute(_STATE, _named(claim)).scalar())


def has_moved(db: sa.Engine, claim: Claim) -> bool:
    """True if an attempt of this claim or an earlier one has moved data."""
    with db.connect() as connection:
        return bool(connection.execute(_HAS_MOVED, {"of": claim.conversion}).scalar())


def finish(
    db: sa.Engine,
    claim: Claim,
    state: End,
    *,
    result: list[dict[str, Any]] | None = None,
    error: dict[str, Any] | None = None,
    read_bytes: int | None = None,
    progress: ProgressState | None = None,
) -> bool:
    """Records the end of the conversion, and counts it; False if the claim is lost.

    Args:
        progress: the last progress; None keeps the last recorded progress.
    """
    now = clock_of(db).now()
    values: dict[str, Any] = {"state": state, "result": result, "error": error, **_FREE}
    values |= {"read_bytes": read_bytes, "ended_at": now}
    if progress is not None:
        values["progress"] = progress.model_dump(mode="json")
    change = CONVERSIONS.update().where(*_standing(claim, CLAIMED)).returning(_C.started_at)
    with db.begin() as connection:
        row = connection.execute(change.values(**values, revision=_C.revision + 1)).one_or_none()
        if row is None:
            return False
        seconds = now - (now if row.started_at is None else row.started_at)
        count_ended(connection, state, seconds, moved_bytes(result))
        announce(connection, [claim.conversion])
        notify(connection, "conversions")
    return True


def hand_back(db: sa.Engine, claim: Claim) -> None:
    """Queues the conversion for the next server; ends it if it is to be cancelled."""
    with db.begin() as connection:
        _release(connection, _standing(claim, CLAIMED))


def take_from_silent(
    db: sa.Engine, heard_after: sa.ColumnElement[float], own: str, is_mine: Callable[[str], bool]
) -> int:
    """Queues again the conversions that no live process carries out; returns their number.

    Args:
        heard_after: executors whose last heartbeat is older are dead.
        own: id of this executor.
        is_mine: true for a claim that this executor works on, or is about to win. The records may give it further
            claims: those that it gave up while the database was out of reach, and those whose COMMIT succeeded
            although the answer was lost.
    """
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    dead = sa.and_(_C.executor != own, _C.executor.not_in(live))
    recorded = sa.select(_C.claim).where(_C.executor == own, _C.state.in_(CLAIMED))
    with db.begin() as connection:
        # Checked after the records were read: claims that are won meanwhile are not among them.
        orphans = [claim for claim in connection.scalars(recorded) if not is_mine(claim)]
        orphaned = sa.and_(_C.executor == own, _C.claim.in_(orphans))
        return _release(connection, (_C.state.in_(CLAIMED), sa.or_(dead, orphaned)))


_FREE: dict[str, None] = {"executor": None, "claim": None}


def _release(connection: sa.Connection, where: tuple[sa.ColumnElement[bool], ...]) -> int:
    """Queues running conversions, and ends those to be cancelled; returns their number."""
    now = clock_of(connection).now()
    free = CONVERSIONS.update().where(*where).returning(_C.id, _C.started_at)
    next_revision = {"revision": _C.revision + 1}
    ended = free.where(_C.state == "cancelling").values(
        state="cancelled", ended_at=now, **next_revision, **_FREE
    )
    queued = free.where(_C.state == "running").values(state="queued", **next_revision, **_FREE)
    cancelled = connection.execute(ended).all()
    for row in cancelled:
        seconds = now - (now if row.started_at is None else row.started_at)
        count_ended(connection, "cancelled", seconds, 0)
    announce(connection, [row.id for row in cancelled])
    number = len(cancelled) + len(connection.scalars(queued).all())
    if number:
        notify(connection, "conversions")
    return number


def _standing(claim: Claim, states: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return _C.id == claim.conversion, _C.claim == claim.text, _C.state.in_(states)


def _named(claim: Claim) -> dict[str, str]:
    return {"of": claim.conversion, "its_claim": claim.text}


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
    running = _counts(connection, CLAIMED)
    queued = _counts(connection, ("queued",))
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


def _counts(connection: sa.Connection, states: Collection[str]) -> dict[str, int]:
    """The number of conversions of each token in these states."""
    query = sa.select(_C.token, sa.func.count().label("many")).where(_C.state.in_(states))
    return {row.token: row.many for row in connection.execute(query.group_by(_C.token))}


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
