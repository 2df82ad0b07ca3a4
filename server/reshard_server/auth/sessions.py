"""Sessions: a person signs in once with a token, and the browser sends a cookie from then on.

The cookie is a random text; the records keep only its hash. So the server can end a session on every replica, and
reading the records does not suffice to take a session over. A session belongs to its token: it ends when the token is
removed from the settings or expires.

Over HTTPS the cookie's name begins with ``__Host-``. A browser accepts such a cookie only from this host, over TLS, and for
every path, so neither another host of the domain nor an attacker on the network can replace it. The browser sends it when
a person follows a link to our pages (``SameSite=Lax``), but never with requests that a page of another site posts, loads
or frames.

Changes that pages of other sites request are refused (cross-site request forgery). A browser names the page of a request in
``Origin`` and ``Sec-Fetch-Site``; programs send neither. So every change by a page of another site is refused: with a form or
without a body, with the cookie or without, and even if no token is needed. A browser sends the cookie without being asked, so
forms of our own pages also carry a key that no other site can know.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import sqlalchemy as sa
from starlette.datastructures import Headers
from starlette.responses import Response

from reshard_server.auth.tokens import Caller, Tokens, caller_of
from reshard_server.db.tables import SESSIONS
from reshard_server.errors.problems import FORBIDDEN, ProblemError

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
        seconds: the duration of a session.
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


PLAIN_NAME = "reshard_session"
SECURE_NAME = f"__Host-{PLAIN_NAME}"


def is_secure(scheme: str, public_url: str | None) -> bool:
    """True if people reach the pages over HTTPS, according to the settings or a trusted proxy."""
    return scheme == "https" or bool(public_url and public_url.startswith("https://"))


def cookie_of(cookies: Mapping[str, str], *, secure: bool) -> str | None:
    """The session's cookie among those of a request; over HTTPS only the secure name counts."""
    return cookies.get(SECURE_NAME if secure else PLAIN_NAME)


def set_cookie(response: Response, session: Session, *, secure: bool) -> None:
    """Sets the cookie; scripts cannot read it."""
    response.set_cookie(
        SECURE_NAME if secure else PLAIN_NAME,
        session.cookie,
        max_age=int(session.seconds),
        path="/",
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def clear_cookie(response: Response, *, secure: bool) -> None:
    """Makes the browser delete the cookie."""
    name = SECURE_NAME if secure else PLAIN_NAME
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=secure)


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods of requests that change nothing."""

_OWN_SITES = frozenset({"same-origin", "none"})
"""``Sec-Fetch-Site`` for our own pages, and for requests that a person makes without a page."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_origin(method: str, headers: Headers, scheme: str, public_url: str | None) -> None:
    """Raises ProblemError if a page of another site requests a change.

    Args:
        scheme: of the request, as the server sees it; ``http`` behind a proxy that ends TLS.
        public_url: this server's URL for people; None to take the request's Host header.
    """
    if method in SAFE_METHODS:
        return
    for site in headers.getlist("sec-fetch-site"):
        if site not in _OWN_SITES:
            raise _refused("Sec-Fetch-Site", site)
    for origin in headers.getlist("origin"):
        if not _is_own(origin, headers, scheme, public_url):
            raise _refused("Origin", origin)


def check_form(headers: Headers, cookie: str | None, key: str | None) -> None:
    """Refuses a form that none of our own pages sent, even if ``check_origin`` let it pass.

    Args:
        cookie: of the session; None if there is none yet, or none is needed.
        key: the form's hidden field.
    """
    if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
        raise _no_form("does not say which page it comes from")
    if cookie is not None and not hmac.compare_digest(
        form_key(cookie).encode(), (key or "").encode(errors="replace")
    ):
        raise _no_form("belongs to another session")


def form_key(cookie: str | None) -> str:
    """The hidden field in each form of a session's pages; no other site can know it."""
    return hmac.new((cookie or "").encode(), b"form", hashlib.sha256).hexdigest()


def _is_own(origin: str, headers: Headers, scheme: str, public_url: str | None) -> bool:
    place = _place(origin)
    if place is None:
        return False
    if public_url is not None:
        return place == _place(public_url)
    if scheme == "https" and place[0] != "https":
        return False
    return place == _place(f"{place[0]}://{headers.get('host', '')}")


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None for other text, such as ``null``."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    if parts.path or parts.query or parts.fragment:
        return None
    return parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port


def _refused(header: str, value: str) -> ProblemError:
    remedy = "open the page again and send its form from there, or leave the header out"
    return ProblemError(
        FORBIDDEN,
        "a change was expected from this server's own pages, or from a program, but the request's "
        f"{header} is {value[:200]!r}; {remedy}",
        remedy=remedy,
    )


def _no_form(why: str) -> ProblemError:
    remedy = "open the page again and send its form from there"
    return ProblemError(FORBIDDEN, f"the form {why}; {remedy}", remedy=remedy)
