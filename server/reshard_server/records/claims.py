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


def new_claim_text() -> str:
    """What no other claim is named."""
    return secrets.token_hex(16)


def claim_next(db: sa.Engine, executor: str, text: str, running_per_token: int) -> Claim | None:
    """Claims the conversion whose turn it is, which runs from now on; None where none may be started."""
    change = (
        CONVERSIONS.update()
        .where(_C.id == _whose_turn(running_per_token), _C.state == "queued")
        .values(state="running", executor=executor, claim=text, revision=_C.revision + 1)
        .returning(_C.id)
    )
    with db.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TURN_KEY)))
        won = connection.execute(change).scalar()
    return None if won is None else Claim(won, executor, text)


def _whose_turn(running_per_token: int) -> sa.ScalarSelect[Any]:
    running = CONVERSIONS.alias()
    busy = (
        sa.select(running.c.token)
        .where(running.c.state.in_(HELD))
        .group_by(running.c.token)
        .having(sa.func.count() >= running_per_token)
    )
    waiting = CONVERSIONS.alias()
    return (
        sa.select(waiting.c.id)
        .where(waiting.c.state == "queued", waiting.c.token.not_in(busy))
        .order_by(waiting.c.priority.desc(), waiting.c.created_at, waiting.c.id)
        .limit(1)
        .scalar_subquery()
    )


def begin_attempt(db: sa.Engine, claim: Claim) -> bool:
    """Counts an attempt; False where the claim does not stand, or the conversion is to be cancelled."""
    begun = {
        "attempts": _C.attempts + 1,
        "started_at": sa.func.coalesce(_C.started_at, time.time()),
    }
    return _change(db, claim, ("running",), begun) is not None


def set_progress(db: sa.Engine, claim: Claim, progress: ProgressState) -> Held | None:
    """Tells how far it is; the state, or None where the claim does not stand."""
    values: dict[str, Any] = {"progress": progress.model_dump(mode="json")}
    if progress.moved_bytes:
        values["begun"] = True
    return _change(db, claim, HELD, values)


def state_of(db: sa.Engine, claim: Claim) -> Held | None:
    """Whether it is to go on or to stop; None where the claim does not stand."""
    with db.connect() as connection:
        found = connection.execute(sa.select(_C.state).where(*_standing(claim, HELD))).scalar()
    return cast("Held | None", found)


def was_begun(db: sa.Engine, claim: Claim) -> bool:
    """Whether an attempt, of this claim or an earlier one, moved something."""
    with db.connect() as connection:
        return bool(
            connection.execute(sa.select(_C.begun).where(_C.id == claim.conversion)).scalar()
        )


def finish(
    db: sa.Engine,
    claim: Claim,
    state: End,
    *,
    result: list[dict[str, Any]] | None = None,
    error: dict[str, Any] | None = None,
    progress: ProgressState | None = None,
) -> bool:
    """Ends the conversion, and counts that; False where the claim does not stand.

    Args:
        progress: the last; None leaves what was told before.
    """
    now = time.time()
    values = {"state": state, "result": result, "error": error, "ended_at": now, **_FREE}
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


def _change(
    db: sa.Engine, claim: Claim, states: tuple[Held, ...], values: dict[str, Any]
) -> Held | None:
    """Sets values where the claim stands; the state that it then has, or None."""
    change = CONVERSIONS.update().where(*_standing(claim, states))
    with db.begin() as connection:
        done = connection.execute(
            change.values(**values, revision=_C.revision + 1).returning(_C.state)
        )
        return cast("Held | None", done.scalar())
