"""Sessions: a person signs in with a token once, and the browser shows a cookie from then on.

The cookie is a random text of which the records keep the hash, so that a session can be ended from here,
on every replica, and reading the records does not suffice to take one over. It stands for the token it was
begun with: when that token leaves the settings or expires, its sessions end.

A browser sends the cookie by itself, so forms prove that they come from our own pages (``origins``).
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

MOST_OF_A_TOKEN = 50
"""Sessions that one token has at once; the oldest makes room."""

_S = SESSIONS.c


@dataclass(frozen=True, slots=True)
class Session:
    """A session that has just begun; ``cookie`` is told nowhere else."""

    cookie: str
    caller: Caller
    seconds: float


@dataclass(frozen=True)
class Sessions:
    """The sessions in the records.

    Attributes:
        seconds: how long one lasts.
    """

    db: sa.Engine
    tokens: Tokens
    seconds: float
    clock: Callable[[], float] = time.time

    def begin(self, token: str) -> Session | None:
        """A new session of who has this token; None where nobody has."""
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
        """Whose session it is; None where it is none, has expired or was ended."""
        if not cookie:
            return None
        query = sa.select(_S.token_sha256).where(
            _S.key == _hash(cookie), _S.expires_at > self.clock()
        )
        with self.db.connect() as connection:
            found = connection.execute(query).scalar()
        known = None if found is None else self.tokens.with_hash(found)
        return None if known is None else caller_of(known)

    def end(self, cookie: str | None) -> None:
        """Ends a session; signing out."""
        with self.db.begin() as connection:
            connection.execute(SESSIONS.delete().where(_S.key == _hash(cookie or "")))

    def end_all(self, token: str) -> int:
        """Ends every session of the token with this name; how many there were."""
        with self.db.begin() as connection:
            return connection.execute(SESSIONS.delete().where(_S.token == token)).rowcount

    def end_of_hash(self, token_sha256: str) -> int:
        """Ends every session of the token with this hash; how many there were."""
        ended = SESSIONS.delete().where(_S.token_sha256 == token_sha256)
        with self.db.begin() as connection:
            return connection.execute(ended).rowcount


def _too_many(token_sha256: str) -> sa.Delete:
    newest = (
        sa.select(_S.key)
        .where(_S.token_sha256 == token_sha256)
        .order_by(_S.created_at.desc(), _S.key)
        .limit(MOST_OF_A_TOKEN)
    )
    return SESSIONS.delete().where(_S.token_sha256 == token_sha256, _S.key.not_in(newest))


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
