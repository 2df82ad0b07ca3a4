"""Sessions: a person signs in once with a token, and the browser sends a cookie from then on.

The cookie is a random text; the records keep only its hash. So the server can end a session on every replica, and
reading the records does not suffice to take a session over. A session belongs to its token: it ends when the token is
removed from the settings or expires.

A browser sends the cookie without being asked, so forms must prove that they come from our own pages (``origins``).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from reshard_server.auth.tokens import Caller, Tokens, caller_of
from reshard_server.db.tables import SESSIONS

SESSIONS_PER_TOKEN = 50
"""Limit of one token's sessions; the oldest makes room."""

_S = SESSIONS.c


@dataclass(frozen=True, slots=True)
class Session:
    """A new session; its ``cookie`` is stored nowhere."""

    cookie: str
    caller: Caller
    seconds: float


@dataclass(frozen=True)
class Sessions:
    """The sessions in the records.

    Attributes:
        seconds: how long a session lasts.
    """

    db: sa.Engine
    tokens: Tokens
    seconds: float
    clock: Callable[[], float] = time.time

    def begin(self, token: str) -> Session | None:
        """Starts a session with a token; None if the token is unknown."""
        known = self.tokens.known(token)
        if known is None:
            return None
        cookie, now = secrets.token_urlsafe(32), self.clock()
        seconds = min(self.seconds, self.tokens.seconds_left(known))
        row = {"token": known.name, "token_sha256": known.sha256, "created_at": now}
        with self.db.begin() as connection:
            connection.execute(SESSIONS.delete().where(_S.expires_at <= now))
            connection.execute(
                SESSIONS.insert().values(key=_hash(cookie), expires_at=now + seconds, **row)
            )
            connection.execute(_too_many(known.sha256))
        return Session(cookie, caller_of(known), seconds)

    def caller(self, cookie: str | None) -> Caller | None:
        """The caller of a session; None if it is unknown, has expired or was ended."""
        if not cookie:
            return None
        query = sa.select(_S.token_sha256).where(
            _S.key == _hash(cookie), _S.expires_at > self.clock()
        )
        with self.db.connect() as connection:
            sha256 = connection.execute(query).scalar()
        known = None if sha256 is None else self.tokens.with_hash(sha256)
        return None if known is None else caller_of(known)

    def end(self, cookie: str | None) -> None:
        """Ends a session (signing out)."""
        with self.db.begin() as connection:
            connection.execute(SESSIONS.delete().where(_S.key == _hash(cookie or "")))

    def end_of_hash(self, token_sha256: str) -> int:
        """Ends all sessions of the token with this hash; returns how many."""
        ended = SESSIONS.delete().where(_S.token_sha256 == token_sha256)
        with self.db.begin() as connection:
            return connection.execute(ended).rowcount


def _too_many(token_sha256: str) -> sa.Delete:
    newest = (
        sa.select(_S.key)
        .where(_S.token_sha256 == token_sha256)
        .order_by(_S.created_at.desc(), _S.key)
        .limit(SESSIONS_PER_TOKEN)
    )
    return SESSIONS.delete().where(_S.token_sha256 == token_sha256, _S.key.not_in(newest))


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
