"""Together: conversions that are asked for at the same time are recorded in one transaction.

Each commit waits for the device, and each goes through a thread. What comes in meanwhile waits, and is
then recorded all at once, so that a burst of requests takes little more than one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard_server.db.conversions.idempotency import Asked, create_all, create_once, known
from reshard_server.errors.problems import ProblemError
from reshard_server.schemas.conversion import Conversion

MOST = 50
"""At most so many in one transaction, so that the first of them need not wait for long."""

Made = tuple[Conversion, bool]
"""A conversion, and whether it is new."""


@dataclass(eq=False)
class Together:
    """Records conversions; used from one event loop.

    Attributes:
        queued_at_most: how many of a token may wait.
        lookers: the threads that ask the records.
    """

    db: sa.Engine
    queued_at_most: int
    lookers: CapacityLimiter
    _waiting: list[tuple[Asked, asyncio.Future[Made]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def create(self, asked: Asked) -> Made:
        """As ``create_once``."""
        made: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, made))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._record())
        return await made

    async def _record(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            asked = [one for one, _ in batch]
            found: list[Made | Exception]
            try:
                found = await run_sync(
                    _made, self.db, asked, self.queued_at_most, limiter=self.lookers
                )
            except Exception as error:  # noqa: BLE001 - raised in the task that asked
                found = [error] * len(batch)
            for (_, made), outcome in zip(batch, found, strict=True):
                _tell(made, outcome)


def _tell(made: asyncio.Future[Made], outcome: Made | Exception) -> None:
    if made.done():  # nobody waits for it any more
        return
    if isinstance(outcome, Exception):
        made.set_exception(outcome)
    else:
        made.set_result(outcome)


def _made(db: sa.Engine, asked: Sequence[Asked], queued_at_most: int) -> list[Made | Exception]:
    """What became of each."""
    try:
        return [(made, True) for made in create_all(db, asked, queued_at_most)]
    except ProblemError:
        return _each_alone(db, asked, queued_at_most)
    except sa.exc.IntegrityError:  # a key was sent before
        before = known(db, asked)
    new = [one for one, found in zip(asked, before, strict=True) if found is None]
    record = _made if 0 < len(new) < len(asked) else _each_alone
    made = iter(record(db, new, queued_at_most))
    return [next(made) if found is None else _told(found) for found in before]


def _each_alone(
    db: sa.Engine, asked: Sequence[Asked], queued_at_most: int
) -> list[Made | Exception]:
    """One at a time, so that what is wrong with one concerns no other."""
    return [_alone(db, one, queued_at_most) for one in asked]


def _alone(db: sa.Engine, asked: Asked, queued_at_most: int) -> Made | Exception:
    try:
        return create_once(db, asked, queued_at_most)
    except Exception as error:  # noqa: BLE001 - raised in the task that asked
        return error


def _told(before: Conversion | ProblemError) -> Made | Exception:
    return before if isinstance(before, ProblemError) else (before, False)
