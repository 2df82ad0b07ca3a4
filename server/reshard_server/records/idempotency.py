"""Idempotency keys: a request that is sent again leads to the conversion that it led to first."""

from __future__ import annotations

import hashlib
import json
import time

import sqlalchemy as sa

from reshard_server.models.conversion import Conversion, ConversionRequest
from reshard_server.problems import KEY_REUSED, TOO_MANY, ProblemError
from reshard_server.records.conversions import count_queued, get, insert
from reshard_server.records.tables import IDEMPOTENCY

KEPT_SECONDS = 7 * 24 * 3600
"""How long a key is known."""

RETRY_AFTER = "30"


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
    known = _known(db, token, key, request)
    if known is not None:
        return known, False
    try:
        with db.begin() as connection:
            return _create(connection, token, key, request, queued_at_most), True
    except sa.exc.IntegrityError:
        known = _known(db, token, key, request)  # the same request came in at the same time
        if known is None:
            raise
        return known, False


def _create(
    connection: sa.Connection,
    token: str,
    key: str | None,
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
    if key is not None:
        _remember(connection, token, key, request, made.id)
    return made


def _remember(
    connection: sa.Connection, token: str, key: str, request: ConversionRequest, conversion: str
) -> None:
    now = time.time()
    row = IDEMPOTENCY.c
    old = IDEMPOTENCY.delete().where(row.token == token, row.created_at < now - KEPT_SECONDS)
    connection.execute(old)
    connection.execute(
        IDEMPOTENCY.insert().values(
            token=token,
            key=key,
            request_hash=request_hash(request),
            conversion=conversion,
            created_at=now,
        )
    )


def _known(
    db: sa.Engine, token: str, key: str | None, request: ConversionRequest
) -> Conversion | None:
    """What this key led to before."""
    row = IDEMPOTENCY.c
    query = sa.select(IDEMPOTENCY).where(
        row.token == token, row.key == key, row.created_at >= time.time() - KEPT_SECONDS
    )
    with db.connect() as connection:
        found = None if key is None else connection.execute(query).one_or_none()
    if found is None:
        return None
    if found.request_hash != request_hash(request):
        raise ProblemError(
            KEY_REUSED,
            f"the Idempotency-Key {key!r} was sent before with another request, which led to conversion "
            f"{found.conversion}; send that request again, or take a new key",
            "Idempotency-Key",
            "send that request again, or take a new key",
        )
    return get(db, found.conversion)
