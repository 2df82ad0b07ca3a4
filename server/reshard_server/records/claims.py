"""Claims: which process carries a conversion out.

A claim is won by one statement and named by every later one, so that a process that was frozen, given
up and thawed changes nothing: the row has another claim by then. Taking turns is this query's work::

    of the queued conversions whose token runs fewer than its limit: the highest priority, then the oldest
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import sqlalchemy as sa

from reshard_server.models.conversion import ProgressState
from reshard_server.records.tables import CONVERSIONS, EXECUTORS
from reshard_server.records.totals import count_ended, moved_bytes

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
    running = CONVERSIONS.alias()
    busy = (
        sa.select(running.c.token)
        .where(running.c.state.in_(HELD))
        .group_by(running.c.token)
        .having(sa.func.count() >= sa.bindparam("most_of_a_token"))
    )
    waiting = CONVERSIONS.alias()
    return (
        sa.select(waiting.c.id)
        .where(waiting.c.state == "queued", waiting.c.token.not_in(busy))
        .order_by(waiting.c.priority.desc(), waiting.c.created_at, waiting.c.id)
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
    .returning(_C.id)
)
_STANDING = (_C.id == sa.bindparam("of"), _C.claim == sa.bindparam("its_claim"))
_STATE = sa.select(_C.state).where(*_STANDING, _C.state.in_(HELD))
_CHANGE = CONVERSIONS.update().where(*_STANDING).returning(_C.state)
_BEGIN_ATTEMPT = _CHANGE.where(_C.state == "running").values(
    attempts=_C.attempts + 1,
    started_at=sa.func.coalesce(_C.started_at, sa.bindparam("now")),
    revision=_C.revision + 1,
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


def claim_next(db: sa.Engine, executor: str, text: str, running_per_token: int) -> Claim | None:
    """Claims the conversion whose turn it is, which runs from now on; None where none may be started."""
    values = {"by": executor, "its_claim": text, "most_of_a_token": running_per_token}
    with db.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_KEY)))
        won = connection.execute(_CLAIM_NEXT, values).scalar()
    return None if won is None else Claim(won, executor, text)


def begin_attempt(db: sa.Engine, claim: Claim) -> bool:
    """Counts an attempt; False where the claim does not stand, or the conversion is to be cancelled."""
    return _changed(db, claim, _BEGIN_ATTEMPT, now=time.time()) is not None


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
    now = time.time()
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
    return True


def hand_back(db: sa.Engine, claim: Claim) -> None:
    """Lets whoever is next go on with it; one that is to be cancelled is cancelled."""
    with db.begin() as connection:
        _let_go(connection, _standing(claim, HELD))


def take_from_silent(
    db: sa.Engine, heard_after: sa.ColumnElement[float], own: str, given_up: Collection[str]
) -> int:
    """Queues again what is held by no live process; how many conversions that were.

    Args:
        heard_after: executors whose last heartbeat is older are dead.
        own, given_up: the asking executor, and those of its claims that it works on no more.
    """
    live = sa.select(EXECUTORS.c.id).where(EXECUTORS.c.heartbeat_at >= heard_after)
    dead = sa.and_(_C.executor != own, _C.executor.not_in(live))
    let_go = sa.and_(_C.executor == own, _C.claim.in_(list(given_up)))
    with db.begin() as connection:
        return _let_go(connection, (_C.state.in_(HELD), sa.or_(dead, let_go)))


_FREE: dict[str, None] = {"executor": None, "claim": None}


def _let_go(connection: sa.Connection, where: tuple[sa.ColumnElement[bool], ...]) -> int:
    """Queues what runs, and ends what is to be cancelled; how many conversions that were."""
    now = time.time()
    free = CONVERSIONS.update().where(*where).returning(_C.started_at)
    next_revision = {"revision": _C.revision + 1}
    ended = free.where(_C.state == "cancelling").values(
        state="cancelled", ended_at=now, **next_revision, **_FREE
    )
    queued = free.where(_C.state == "running").values(state="queued", **next_revision, **_FREE)
    starts = connection.scalars(ended).all()
    for start in starts:
        count_ended(connection, "cancelled", now - (now if start is None else start), 0)
    return len(starts) + len(connection.scalars(queued).all())


def _standing(claim: Claim, states: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return _C.id == claim.conversion, _C.claim == claim.text, _C.state.in_(states)


def _changed(db: sa.Engine, claim: Claim, change: sa.UpdateBase, **values: Any) -> Held | None:
    """Changes the row where the claim stands; the state that it then has, or None."""
    with db.begin() as connection:
        found = connection.execute(change, {**_named(claim), **values}).scalar()
    return cast("Held | None", found)


def _named(claim: Claim) -> dict[str, str]:
    return {"of": claim.conversion, "its_claim": claim.text}
