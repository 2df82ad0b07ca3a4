"""The cookie of a session: its name, and how it is set and cleared.

Over HTTPS its name begins with ``__Host-``. A browser accepts such a cookie only from this host, over TLS, and for every
path, so neither another host of the domain nor an attacker on the network can replace it. The browser sends it when a
person follows a link to our pages (``SameSite=Lax``), but never with requests that a page of another site posts, loads
or frames.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from reshard_server.auth.sessions import Session

PLAIN_NAME = "reshard_session"
SECURE_NAME = f"__Host-{PLAIN_NAME}"


def is_secure(scheme: str, public_url: str | None) -> bool:
    """Whether people reach the pages over HTTPS, as the settings or a trusted proxy say."""
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
