"""Refuses changes that pages of other sites request (cross-site request forgery).

A browser names the page of a request in ``Origin`` and ``Sec-Fetch-Site``; programs send neither. So every
change by a page of another site is refused: with a form or without a body, with the cookie or without, and even if no
token is needed. Forms of our own pages also carry a key that no other site can know.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from reshard_server.errors.problems import FORBIDDEN, ProblemError

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
