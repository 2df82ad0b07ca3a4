"""Claims: which process carries a conversion out.

A claim is won by one statement and named by every later one, so that a process that was frozen, given
up and thawed changes nothing: the row has another claim by then. Fair shares are this query's work::

    of the queued conversions whose token runs fewer than its limit: of the token that runs the fewest, then of the
    token whose last turn was longest ago, then the highest priority, then the oldest
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import sqlalchemy as sa

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.totals import count_ended, moved_bytes
from reshard_server.db.notify import tell
from reshard_server.db.tables import CONVERSIONS, EXECUTORS, TURNS
from reshard_server.schemas.conversion import ProgressState

End = Literal["succeeded", "failed", "cancelled"]
Held = Literal["running", "cancelling"]
HELD: tuple[Held, ...] = ("running", "cancelling")

TURN_KEY = 7_265_736_861_726_401
"""Of the Postgres advisory lock that is held while a claim is won, so that limits hold over all replicas."""

_C = CONVERSIONS.c


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry a conversion out.

    Attributes:
        executor: id of the process that has it.
        text: what the row must name for the claim to stand.
    """

    conversion: str
    executor: str
    text: str


def _whose_turn() -> sa.ScalarSelect[Any]:
    held = CONVERSIONS.alias()
    busy = (
        sa.select(held.c.token, sa.func.count().label("conversions"))
        .where(held.c.state.in_(HELD))
        .group_by(held.c.token)
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


# Put together once: that takes longer than to ask SQLite.
_CLAIM_NEXT = (
    CONVERSIONS.update()
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
_STANDING = (_C.id == sa.bindparam("of"), _C.claim == sa.bindparam("its_claim"))
_STATE = sa.select(_C.state).where(*_STANDING, _C.state.in_(HELD))
_CHANGE = CONVERSIONS.update().where(*_STANDING).returning(_C.state)
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
_MAY_PUBLISH = sa.select(_C.id).where(
    *_STANDING, _C.state == "running", _C.attempts == sa.bindparam("number")
)
_SET_PROGRESS = _CHANGE.where(_C.state.in_(HELD)).values(
    progress=sa.bindparam("at", type_=sa.JSON),
    begun=sa.or_(_C.begun, sa.bindparam("has_moved", type_=sa.Boolean)),
    revision=_C.revision + 1,
)
_BEGUN = sa.select(_C.begun).where(_C.id == sa.bindparam("of"))


def new_claim_text() -> str:
    """What no other claim is named."""
    return secrets.token_hex(16)


def claim_next(
    db: sa.Engine,
    executor: str,
    text: str,
    running_per_token: int,
    left: Collection[str] = (),
) -> Claim | None:
    """Claims the next conversion and marks it running; None where none may start.

    Args:
        left: conversions that are left to servers of another version.
    """
    values: dict[str, Any] = {
        "by": executor,
        "its_claim": text,
        "most_of_a_token": running_per_token,
    }
    values["left"] = list(left)
    with db.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_KEY)))
        won = connection.execute(_CLAIM_NEXT, values).one_or_none()
        if won is None:
            return None
        if not connection.execute(_SET_TURN, {"of": won.token}).rowcount:
            connection.execute(_FIRST_TURN, {"of": won.token})
    return Claim(won.id, executor, text)


def begin_attempt(db: sa.Engine, claim: Claim) -> int | None:
    """Counts an attempt; its number, or None where the claim does not stand or it is to be cancelled."""
    with db.begin() as connection:
        named = {**_named(claim), "now": clock_of(db).now()}
        return cast("int | None", connection.execute(_BEGIN_ATTEMPT, named).scalar())


def may_publish(db: sa.Engine, claim: Claim, attempt: int) -> bool:
    """Whether the claim stands, nobody cancelled it, and this is its attempt."""
    with db.connect() as connection:
        return (
            connection.execute(_MAY_PUBLISH, {**_named(claim), "number": attempt}).scalar()
            is not None
        )


def set_progress(db: sa.Engine, claim: Claim, progress: ProgressState) -> Held | None:
    """Tells how far it is; the state, or None where the claim does not stand."""
    at = progress.model_dump(mode="json")
    return _changed(db, claim, _SET_PROGRESS, at=at, has_moved=progress.moved_bytes > 0)


def state_of(db: sa.Engine, claim: Claim) -> Held | None:
    """Whether it is to go on or to stop; None where the claim does not stand."""
    with db.connect() as connection:
        return cast("Held | None", connection.execute(_STATE, _named(claim)).scalar())


def was_begun(db: sa.Engine, claim: Claim) -> bool:
    """Whether an attempt, of this claim or an earlier one, moved something."""
    with db.connect() as connection:
        return bool(connection.execute(_BEGUN, {"of": claim.conversion}).scalar())


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
    """Ends the conversion, and counts that; False where the claim does not stand.

    Args:
        progress: the last; None leaves what was told before.
    """
    now = clock_of(db).now()
    values: dict[str, Any] = {"state": state, "result": result, "error": error, **_FREE}
    values |= {"read_bytes": read_bytes, "ended_at": now}
    if progress is not None:
        values["progress"] = progress.model_dump(mode="json")
    change = CONVERSIONS.update().where(*_standing(claim, HELD)).returning(_C.started_at)
    with db.begin() as connection:
        row = connection.execute(change.values(**values, revision=_C.revision + 1)).one_or_none()
        if row is None:
            return False
        seconds = now - (now if row.started_at is None else row.started_at)
        count_ended(connection, state, seconds, moved_bytes(result))
        tell(connection, "conversions")
    return True


def hand_back(db: sa.Engine, claim: Claim) -> None:
    """Releases it for the next server; one that is to be cancelled is cancelled."""
    with db.begin() as connection:
        _let_go(connection, _standing(claim, HELD))


def take_from_silent(
    db: sa.Engine, heard_after: sa.ColumnElement[float], own: str, is_mine: Callable[[str], bool]
) -> int:
    """Queues again what no live process carries out; how many conversions that were.

    Args:
        heard_after: executors whose last heartbeat is older are dead.
        own: the asking executor.
        is_mine: whether it works on a claim, or is about to win it. The records may say that it holds others:
            it gave them up while the database was out of reach, or was never told that it won them.
    """
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    dead = sa.and_(_C.executor != own, _C.executor.not_in(live))
    recorded = sa.select(_C.claim).where(_C.executor == own, _C.state.in_(HELD))
    with db.begin() as connection:
        # Asked after the records have been read: what is won meanwhile is not in them.
        orphans = [claim for claim in connection.scalars(recorded) if not is_mine(claim)]
        let_go = sa.and_(_C.executor == own, _C.claim.in_(orphans))
        return _let_go(connection, (_C.state.in_(HELD), sa.or_(dead, let_go)))


_FREE: dict[str, None] = {"executor": None, "claim": None}


def _let_go(connection: sa.Connection, where: tuple[sa.ColumnElement[bool], ...]) -> int:
    """Queues what runs, and ends what is to be cancelled; how many conversions that were."""
    now = clock_of(connection).now()
    free = CONVERSIONS.update().where(*where).returning(_C.started_at)
    next_revision = {"revision": _C.revision + 1}
    ended = free.where(_C.state == "cancelling").values(
        state="cancelled", ended_at=now, **next_revision, **_FREE
    )
    queued = free.where(_C.state == "running").values(state="queued", **next_revision, **_FREE)
    starts = connection.scalars(ended).all()
    for start in starts:
        count_ended(connection, "cancelled", now - (now if start is None else start), 0)
    number = len(starts) + len(connection.scalars(queued).all())
    if number:
        tell(connection, "conversions")
    return number


def _standing(claim: Claim, states: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return _C.id == claim.conversion, _C.claim == claim.text, _C.state.in_(states)


def _changed(db: sa.Engine, claim: Claim, change: sa.UpdateBase, **values: Any) -> Held | None:
    """Changes the row where the claim stands; the state that it then has, or None."""
    with db.begin() as connection:
        found = connection.execute(change, {**_named(claim), **values}).scalar()
    return cast("Held | None", found)


def _named(claim: Claim) -> dict[str, str]:
    return {"of": claim.conversion, "its_claim": claim.text}
