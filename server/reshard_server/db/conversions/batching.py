"""Records conversions that are requested at the same time in one transaction.

Each commit waits for the device. Requests that arrive meanwhile wait and are then recorded in one commit, so that a
burst of requests takes little longer than one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard_server.db.conversions.idempotency import Submission, create_all, create_once, known
from reshard_server.errors.problems import ProblemError
from reshard_server.schemas.conversion import Conversion

MOST = 50
"""Limit per transaction, so that the first request in it need not wait long."""

Made = tuple[Conversion, bool]
"""A conversion, and whether it is new."""


@dataclass(eq=False)
class BatchRecorder:
    """Records conversions in batches; used from one event loop.

    Attributes:
        queued_at_most: most waiting conversions of a token.
        lookers: the threads that use the database.
    """

    db: sa.Engine
    queued_at_most: int
    lookers: CapacityLimiter
    _waiting: list[tuple[Submission, asyncio.Future[Made]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def create(self, submission: Submission) -> Made:
        """Like ``create_once``."""
        made: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, made))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._record())
        return await made

    async def _record(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            submissions = [one for one, _ in batch]
            outcomes: list[Made | Exception]
            try:
                outcomes = await run_sync(
                    _record_batch, self.db, submissions, self.queued_at_most, limiter=self.lookers
                )
            except Exception as error:  # noqa: BLE001 - raised in the requesting task
                outcomes = [error] * len(batch)
            for (_, made), outcome in zip(batch, outcomes, strict=True):
                _resolve(made, outcome)


def _resolve(made: asyncio.Future[Made], outcome: Made | Exception) -> None:
    if made.done():  # its request was cancelled
        return
    if isinstance(outcome, Exception):
        made.set_exception(outcome)
    else:
        made.set_result(outcome)


def _record_batch(
    db: sa.Engine, submissions: Sequence[Submission], queued_at_most: int
) -> list[Made | Exception]:
    """Records all submissions in one transaction if possible; returns the outcome of each."""
    try:
        return [(made, True) for made in create_all(db, submissions, queued_at_most)]
    except ProblemError:
        return _each_alone(db, submissions, queued_at_most)
    except sa.exc.IntegrityError:  # a key was sent before
        before = known(db, submissions)
    new = [one for one, earlier in zip(submissions, before, strict=True) if earlier is None]
    record = _record_batch if 0 < len(new) < len(submissions) else _each_alone
    made = iter(record(db, new, queued_at_most))
    return [next(made) if earlier is None else _known(earlier) for earlier in before]


def _each_alone(
    db: sa.Engine, submissions: Sequence[Submission], queued_at_most: int
) -> list[Made | Exception]:
    """Records one at a time, so that a problem of one submission affects no other."""
    return [_alone(db, one, queued_at_most) for one in submissions]


def _alone(db: sa.Engine, submission: Submission, queued_at_most: int) -> Made | Exception:
    try:
        return create_once(db, submission, queued_at_most)
    except Exception as error:  # noqa: BLE001 - raised in the requesting task
        return error


def _known(before: Conversion | ProblemError) -> Made | Exception:
    return before if isinstance(before, ProblemError) else (before, False)
