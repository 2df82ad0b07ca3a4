"""Idempotency keys: a request that is sent again leads to the conversion that it led to first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reshard_server.db.canonical_json import canonical_text
from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.conversions import New, count_queued, get_many, insert
from reshard_server.db.tables import IDEMPOTENCY
from reshard_server.errors.problems import KEY_REUSED, TOO_MANY, ProblemError
from reshard_server.schemas.conversion import Conversion, ConversionRequest

KEPT_SECONDS = 7 * 24 * 3600
"""How long a key is known."""

RETRY_AFTER = "30"

_I = IDEMPOTENCY.c
_REMEMBER = IDEMPOTENCY.insert()


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversion that a token asks for, with or without a key.

    Attributes:
        sent: the request as it was sent, where the one to record names another path (``step``, ``item``).
    """

    token: str
    request: ConversionRequest
    key: str | None = None
    sent: ConversionRequest | None = None

    @property
    def hash(self) -> str:
        """The same whenever the same request is sent."""
        return request_hash(self.sent or self.request)


def request_hash(request: ConversionRequest) -> str:
    """The same for every way to write the same request."""
    text = canonical_text(request.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()


def create_once(db: sa.Engine, asked: Asked, queued_at_most: int) -> tuple[Conversion, bool]:
    """A new conversion, or the one that this token made with this key; and whether it is new.

    Raises ProblemError where the key belongs to another request, or too many of the token's wait.
    """
    try:
        return create_all(db, [asked], queued_at_most)[0], True
    except sa.exc.IntegrityError:
        if asked.key is None:
            raise
    [before] = known(db, [asked])
    if isinstance(before, ProblemError):
        raise before
    if before is not None:
        return before, False
    forget_keys(db)  # this one was sent too long ago to be known, and was still there
    return create_all(db, [asked], queued_at_most)[0], True


def create_all(db: sa.Engine, asked: Sequence[Asked], queued_at_most: int) -> list[Conversion]:
    """New conversions, all of them or none.

    Raises IntegrityError where a key was sent before, else ProblemError where too many of a token's wait.
    """
    with db.begin() as connection:
        made = insert(connection, [New(one.token, one.request) for one in asked])
        now = clock_of(connection).now()
        keys = [_key_row(one, new, now) for one, new in zip(asked, made, strict=True) if one.key]
        if keys:
            connection.execute(_REMEMBER, keys)
        for token in {one.token for one in asked}:
            _refuse_too_many(connection, token, queued_at_most)
    return made


def _key_row(asked: Asked, made: Conversion, now: float) -> dict[str, Any]:
    return {
        "token": asked.token,
        "key": asked.key,
        "request_hash": asked.hash,
        "conversion": made.id,
        "created_at": now,
    }


def _refuse_too_many(connection: sa.Connection, token: str, queued_at_most: int) -> None:
    if count_queued(connection, token) > queued_at_most:
        raise ProblemError(
            TOO_MANY,
            f"{queued_at_most} conversions of the token {token!r} wait already, as many as may; wait until some have "
            "ended, or cancel some",
            headers={"Retry-After": RETRY_AFTER},
        )


def known(db: sa.Engine, asked: Sequence[Asked]) -> list[Conversion | ProblemError | None]:
    """What each key led to before, or the problem that this was another request; None for what is new."""
    keys = [(one.token, one.key) for one in asked if one.key]
    query = sa.select(IDEMPOTENCY).where(
        sa.tuple_(_I.token, _I.key).in_(keys), _I.created_at >= clock_of(db).now() - KEPT_SECONDS
    )
    with db.connect() as connection:
        found = {(row.token, row.key): row for row in connection.execute(query)}
    led_to = get_many(db, [row.conversion for row in found.values()])
    return [_led_to(one, found.get((one.token, one.key)), led_to) for one in asked]


def _led_to(
    asked: Asked, row: sa.Row[Any] | None, conversions: Mapping[str, Conversion]
) -> Conversion | ProblemError | None:
    if row is None:
        return None
    if row.request_hash == asked.hash:
        return conversions.get(row.conversion)
    return ProblemError(
        KEY_REUSED,
        f"the Idempotency-Key {asked.key!r} was sent before with another request, which led to conversion "
        f"{row.conversion}; send that request again, or take a new key",
        "Idempotency-Key",
        "send that request again, or take a new key",
    )


def forget_keys(db: sa.Engine) -> None:
    """Forgets keys that are no longer known."""
    with db.begin() as connection:
        connection.execute(
            IDEMPOTENCY.delete().where(IDEMPOTENCY.c.created_at < clock_of(db).now() - KEPT_SECONDS)
        )
