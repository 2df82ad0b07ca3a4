"""Claims: the right of one process to carry a conversion out.

One statement wins a claim, and every later statement names it. So a process that was frozen and presumed dead changes
nothing when it thaws: the row has another claim by then. The same query gives tokens fair shares. Among the queued
conversions of tokens that run fewer than their limit, it takes the first by

1. the number that the token runs now, fewest first;
2. the token's last turn, longest ago first;
3. the priority, highest first;
4. the age, oldest first.

A part of a conversion (``parts``) is claimed, counted and taken over as a conversion is; so is the commit of a conversion whose parts
have succeeded. A conversion that waits for its parts has no claim and counts as none. A row is left to other hosts if it asks for more
memory than this one gives, or for a label that it lacks.

The times of heartbeats are the database's, so that the clocks of hosts need not agree.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.connections import notify
from reshard_server.db.conversions import parts
from reshard_server.db.conversions.executors import Host
from reshard_server.db.conversions.rows import count_ended, moved_bytes
from reshard_server.db.tables import CONVERSION_NEEDS, CONVERSIONS, EXECUTORS, TURNS
from reshard_server.schemas.conversion import ProgressState

End = Literal["succeeded", "failed", "cancelled"]
ClaimedState = Literal["running", "cancelling"]
CLAIMED: tuple[ClaimedState, ...] = ("running", "cancelling")

MOST_MEMORY = 2**63 - 1
"""The records' largest number, for a host that does not say its memory."""

TURN_KEY = 7_265_736_861_726_401
"""Postgres's advisory lock while a claim is won, so that limits apply over all replicas."""

_C, _N = CONVERSIONS.c, CONVERSION_NEEDS.c


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry a conversion out, or a part of one.

    Attributes:
        conversion: id of the row, which may be that of a part.
        executor: id of the process that has it.
        text: the row names this text as long as the claim stands.
        parent: id of the conversion, for a part.
        part: number of the part.
        parts: number of the conversion's parts; None before the split, and for one without parts.
        commits: True where all parts have succeeded.
        max_memory, workers: the limits with which the conversion was split; None before.
        host: the name of the host that has it.
    """

    conversion: str
    executor: str
    text: str
    parent: str | None = None
    part: int | None = None
    parts: int | None = None
    commits: bool = False
    max_memory: int | None = None
    workers: int | None = None
    host: str | None = None

    @property
    def whole(self) -> str:
        """The id of the conversion that clients see."""
        return self.parent or self.conversion


def is_claimable(c: Any) -> sa.ColumnElement[bool]:
    """True for rows that wait for a process: queued ones, and conversions whose parts have succeeded; ``c``: their columns."""
    commits = sa.and_(c.state == "running", c.parts_left == 0)
    return sa.and_(c.claim.is_(None), sa.or_(c.state == "queued", commits))


def _whose_turn() -> sa.ScalarSelect[Any]:
    claimed = CONVERSIONS.alias()
    busy = (
        sa.select(claimed.c.token, sa.func.count().label("conversions"))
        .where(claimed.c.state.in_(CLAIMED), claimed.c.claim.is_not(None))
        .group_by(claimed.c.token)
        .subquery()
    )
    waiting = CONVERSIONS.alias()
    running = sa.func.coalesce(busy.c.conversions, 0)
    whole = sa.func.coalesce(waiting.c.parent, waiting.c.id)
    lacking = sa.select(_N.label).where(
        _N.conversion == whole, _N.label.not_in(sa.bindparam("host_labels", expanding=True))
    )
    return (
        sa.select(waiting.c.id)
        .join_from(waiting, busy, busy.c.token == waiting.c.token, isouter=True)
        .join(TURNS, TURNS.c.token == waiting.c.token, isouter=True)
        .where(
            is_claimable(waiting.c),
            running < sa.bindparam("most_of_a_token"),
            whole.not_in(sa.bindparam("left", expanding=True)),
            sa.func.coalesce(waiting.c.max_memory, 0) <= sa.bindparam("host_memory"),
            ~lacking.exists(),
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
    # Against two processes that choose the same row: only one of them finds it without a claim.
    .where(_C.id == _whose_turn(), is_claimable(_C))
    .values(
        state="running",
        executor=sa.bindparam("by"),
        claim=sa.bindparam("its_claim"),
        host=sa.bindparam("its_host"),
        revision=_C.revision + 1,
    )
    .returning(
        _C.id, _C.token, _C.parent, _C.part, _C.parts, _C.parts_left, _C.max_memory, _C.workers
    )
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
    db: sa.Engine,
    executor: str,
    text: str,
    running_per_token: int,
    left: Collection[str] = (),
    host: Host | None = None,
) -> Claim | None:
    """Claims the next conversion, part or commit and marks it running; None if none may start now.

    Args:
        left: conversions to leave to servers of another version.
        host: what this host has; without it everything.
    """
    host = host or Host()
    values: dict[str, Any] = {"by": executor, "its_claim": text, "left": list(left)}
    values |= {"most_of_a_token": running_per_token, "its_host": host.name}
    values |= {"host_memory": host.max_memory or MOST_MEMORY, "host_labels": host.label_texts()}
    with db.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Against replicas that count the same token's conversions at once and both exceed its limit.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_KEY)))
        won = connection.execute(_CLAIM_NEXT, values).one_or_none()
        if won is None:
            return None
        if not connection.execute(_SET_TURN, {"of": won.token}).rowcount:
            connection.execute(_FIRST_TURN, {"of": won.token})
    return Claim(
        won.id,
        executor,
        text,
        parent=won.parent,
        part=won.part,
        parts=won.parts,
        commits=won.parts_left == 0,
        max_memory=won.max_memory,
        workers=won.workers,
        host=host.name,
    )


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
    """Records the end of the conversion or the part; False if the claim is lost. Only conversions are counted.

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
        if claim.parent is not None:
            parts.lock_conversions(connection, [claim.parent])
        row = connection.execute(change.values(**values, revision=_C.revision + 1)).one_or_none()
        if row is None:
            return False
        if claim.parent is not None:
            parts.note_end(connection, claim.parent, state, error)
        else:
            seconds = now - (now if row.started_at is None else row.started_at)
            count_ended(connection, state, seconds, moved_bytes(result))
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
    """Queues running conversions and parts, and ends those to be cancelled; returns their number."""
    of_parts = sa.select(_C.parent).where(*where, _C.parent.is_not(None)).distinct()
    # Against a deadlock with a cancellation, which locks the conversion before its parts.
    parts.lock_conversions(connection, connection.scalars(of_parts).all())
    now = clock_of(connection).now()
    free = CONVERSIONS.update().where(*where).returning(_C.started_at, _C.parent)
    next_revision = {"revision": _C.revision + 1}
    ended = free.where(_C.state == "cancelling").values(
        state="cancelled", ended_at=now, **next_revision, **_FREE
    )
    # A commit is claimed again without another split.
    state = sa.case((_C.parts_left == 0, "running"), else_="queued")
    queued = free.where(_C.state == "running").values(state=state, **next_revision, **_FREE)
    gone = connection.execute(ended).all()
    for row in gone:
        if row.parent is None:
            start = now if row.started_at is None else row.started_at
            count_ended(connection, "cancelled", now - start, 0)
    parts.settle(connection, {row.parent for row in gone if row.parent is not None})
    number = len(gone) + len(connection.execute(queued).all())
    if number:
        notify(connection, "conversions")
    return number


def split(db: sa.Engine, claim: Claim, found: parts.Split) -> bool:
    """Records the parts of a conversion, which then waits for them without a claim; False if the claim is lost.

    Parts that succeeded before a retry stay so, unless the conversion began anew or has another number of parts.
    """
    progress = ProgressState(
        stage="copying",
        moved_bytes=0,
        total_bytes=found.total_bytes,
        tasks_done=0,
        tasks=0,
        tensor="",
    )
    values: dict[str, Any] = {"progress": progress.model_dump(mode="json"), "begun": True, **_FREE}
    values |= {"attempts": 0, "parts": found.parts, "revision": _C.revision + 1}
    values |= {"max_memory": found.max_memory, "workers": found.workers}
    mine = CONVERSIONS.update().where(*_standing(claim, ("running",))).returning(CONVERSIONS)
    with db.begin() as connection:
        row = connection.execute(mine.values(**values)).one_or_none()
        if row is None:
            return False
        parts.record(connection, row, found)
        notify(connection, "conversions")
    return True


def _standing(claim: Claim, states: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return _C.id == claim.conversion, _C.claim == claim.text, _C.state.in_(states)


def _named(claim: Claim) -> dict[str, str]:
    return {"of": claim.conversion, "its_claim": claim.text}
