"""Idempotency keys: a request that is sent again leads to the conversion that it led to first."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from reshard_server.models.conversion import Conversion, ConversionRequest
from reshard_server.problems import KEY_REUSED, TOO_MANY, ProblemError
from reshard_server.records.conversions import count_queued, get, insert
from reshard_server.records.tables import IDEMPOTENCY

KEPT_SECONDS = 7 * 24 * 3600
"""How long a key is known."""

RETRY_AFTER = "30"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was sent with a key."""

    token: str
    key: str
    request_hash: str


def request_hash(request: ConversionRequest) -> str:
    """The same for every way to write the same request."""
    text = json.dumps(request.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def create_once(
    db: sa.Engine, *, token: str, key: str | None, request: ConversionRequest, queued_at_most: int
) -> tuple[Conversion, bool]:
    """A new conversion, or the one that this token made with this key; and whether it is new.

    Raises ProblemError where the key belongs to another request, or too many of the token's wait.
    """
    sent = None if key is None else Sent(token, key, request_hash(request))
    known = None if sent is None else _known(db, sent)
    if known is not None:
        return known, False
    try:
        with db.begin() as connection:
            return _create(connection, token, sent, request, queued_at_most), True
    except sa.exc.IntegrityError:
        known = None if sent is None else _known(db, sent)  # it came in twice at the same time
        if known is None:
            raise
        return known, False


def _create(
    connection: sa.Connection,
    token: str,
    sent: Sent | None,
    request: ConversionRequest,
    queued_at_most: int,
) -> Conversion:
    made = insert(connection, token=token, request=request)
    if count_queued(connection, token) > queued_at_most:
        raise ProblemError(
            TOO_MANY,
            f"{queued_at_most} conversions of the token {token!r} wait already, as many as may; wait until some have "
            "ended, or cancel some",
            headers={"Retry-After": RETRY_AFTER},
        )
    if sent is not None:
        _remember(connection, sent, made.id)
    return made


def _remember(connection: sa.Connection, sent: Sent, conversion: str) -> None:
    """Other keys that are no longer known are removed from time to time, not by each request."""
    now = time.time()
    old = IDEMPOTENCY.delete().where(*_is(sent), IDEMPOTENCY.c.created_at < now - KEPT_SECONDS)
    connection.execute(old)
    row = {**asdict(sent), "conversion": conversion, "created_at": now}
    connection.execute(IDEMPOTENCY.insert(), row)


def _known(db: sa.Engine, sent: Sent) -> Conversion | None:
    """What this key led to before."""
    known = IDEMPOTENCY.c.created_at >= time.time() - KEPT_SECONDS
    with db.connect() as connection:
        found = connection.execute(sa.select(IDEMPOTENCY).where(*_is(sent), known)).one_or_none()
    if found is None:
        return None
    if found.request_hash != sent.request_hash:
        raise ProblemError(
            KEY_REUSED,
            f"the Idempotency-Key {sent.key!r} was sent before with another request, which led to conversion "
            f"{found.conversion}; send that request again, or take a new key",
            "Idempotency-Key",
            "send that request again, or take a new key",
        )
    return get(db, found.conversion)


def _is(sent: Sent) -> tuple[sa.ColumnElement[bool], ...]:
    return IDEMPOTENCY.c.token == sent.token, IDEMPOTENCY.c.key == sent.key


def forget_keys(db: sa.Engine) -> None:
    """Forgets keys that are no longer known."""
    with db.begin() as connection:
        connection.execute(
            IDEMPOTENCY.delete().where(IDEMPOTENCY.c.created_at < time.time() - KEPT_SECONDS)
        )
