"""New conversions: recorded many at a time, and once for each idempotency key.

Each commit waits for the device. Requests that arrive meanwhile wait and are then recorded in one commit, so that a
burst of requests takes little longer than one request. A request that is sent again with its key returns the first
conversion.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.conversions import New, count_queued, get_many, insert
from reshard_server.db.documents import canonical_text
from reshard_server.db.tables import IDEMPOTENCY
from reshard_server.errors.problems import KEY_REUSED, TOO_MANY, ProblemError
from reshard_server.schemas.conversion import (
    Conversion,
    JobRequest,
)

KEPT_SECONDS = 7 * 24 * 3600
"""Seconds that a key is remembered."""

RETRY_AFTER = "30"

_I = IDEMPOTENCY.c
_REMEMBER = IDEMPOTENCY.insert()


@dataclass(frozen=True, slots=True)
class Submission:
    """A conversion that a token requests, with or without a key.

    Attributes:
        sent: the request as the client sent it, if ``request`` has a path in place of its step or item.
    """

    token: str
    request: JobRequest
    key: str | None = None
    sent: JobRequest | None = None

    @property
    def hash(self) -> str:
        """Equal for requests that the client sent equally."""
        return request_hash(self.sent or self.request)


def request_hash(request: JobRequest) -> str:
    """A digest that is equal for every way to write the same request."""
    text = canonical_text(request.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()


def create_once(
    db: sa.Engine, submission: Submission, queued_at_most: int
) -> tuple[Conversion, bool]:
    """Records a conversion, or finds the one that this token made with this key; returns it, and True if it is new.

    Raises ProblemError if the key was sent with another request, or too many conversions of the token wait.
    """
    try:
        return create_all(db, [submission], queued_at_most)[0], True
    except sa.exc.IntegrityError:
        if submission.key is None:
            raise
    [before] = known(db, [submission])
    if isinstance(before, ProblemError):
        raise before
    if before is not None:
        return before
    forget_keys(db)  # the key is too old to be remembered, but its row still exists
    return create_all(db, [submission], queued_at_most)[0], True


def create_all(
    db: sa.Engine, submissions: Sequence[Submission], queued_at_most: int
) -> list[Conversion]:
    """Records all of these conversions, or none.

    Raises IntegrityError if a key was sent before, else ProblemError if too many conversions of a token wait.
    """
    with db.begin() as connection:
        made = insert(connection, [New(one.token, one.request) for one in submissions])
        now = clock_of(connection).now()
        keys = [
            {
                "token": one.token,
                "key": one.key,
                "request_hash": one.hash,
                "conversion": new.id,
                "created_at": now,
            }
            for one, new in zip(submissions, made, strict=True)
            if one.key
        ]
        if keys:
            connection.execute(_REMEMBER, keys)
        for token in {one.token for one in submissions}:
            if count_queued(connection, token) > queued_at_most:
                raise ProblemError(
                    TOO_MANY,
                    f"{queued_at_most} conversions of the token {token!r} wait already, the most that may wait; wait until some have "
                    "ended, or cancel some",
                    headers={"Retry-After": RETRY_AFTER},
                )
    return made


def known(db: sa.Engine, submissions: Sequence[Submission]) -> list[Made | ProblemError | None]:
    """The earlier conversion of each submission, the problem that its key was used otherwise, or None if it is new."""
    keys = [(one.token, one.key) for one in submissions if one.key]
    query = sa.select(IDEMPOTENCY).where(
        sa.tuple_(_I.token, _I.key).in_(keys), _I.created_at >= clock_of(db).now() - KEPT_SECONDS
    )
    with db.connect() as connection:
        rows = {(row.token, row.key): row for row in connection.execute(query)}
    earlier = get_many(db, [row.conversion for row in rows.values()])
    return [_earlier(one, rows.get((one.token, one.key)), earlier) for one in submissions]


def _earlier(
    submission: Submission, row: sa.Row[Any] | None, conversions: Mapping[str, Conversion]
) -> Made | ProblemError | None:
    if row is None:
        return None
    if row.request_hash == submission.hash:
        earlier = conversions.get(row.conversion)
        return None if earlier is None else (earlier, False)
    return ProblemError(
        KEY_REUSED,
        f"the Idempotency-Key {submission.key!r} was sent before with another request, which made the conversion "
        f"{row.conversion}; send that request again, or take a new key",
        "Idempotency-Key",
    )


def forget_keys(db: sa.Engine) -> None:
    """Deletes keys that are too old."""
    with db.begin() as connection:
        connection.execute(
            IDEMPOTENCY.delete().where(IDEMPOTENCY.c.created_at < clock_of(db).now() - KEPT_SECONDS)
        )


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
    return [earlier or next(made) for earlier in before]


def _each_alone(
    db: sa.Engine, submissions: Sequence[Submission], queued_at_most: int
) -> list[Made | Exception]:
    """Records one at a time, so that a problem of one submission affects no other."""
    outcomes: list[Made | Exception] = []
    for one in submissions:
        try:
            outcomes.append(create_once(db, one, queued_at_most))
        except Exception as error:  # noqa: BLE001 - raised in the requesting task
            outcomes.append(error)
    return outcomes
