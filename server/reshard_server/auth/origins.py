"""Origins: what changes something comes from our own pages, or from no page at all.

A browser says which page a request comes from, in ``Origin`` and ``Sec-Fetch-Site``; programs send neither. So a
page of another site is refused whatever it sends: a form, a request without a body, with the cookie or without, and
also where no token is needed. A form of our own pages besides carries a key that nobody else can know.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from reshard_server.errors.problems import FORBIDDEN, ProblemError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""With which a request changes nothing."""

_OWN_SITES = frozenset({"same-origin", "none"})
"""What ``Sec-Fetch-Site`` says of our own pages, and of what a person does without any page."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_origin(method: str, headers: Headers, scheme: str, public_url: str | None) -> None:
    """ProblemError where a page of another site asks for a change.

    Args:
        scheme: of the request, as far as it is known; behind what ends TLS it may be ``http``.
        public_url: where people reach this server; None: wherever the request says.
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
    """Refuses a form that was not sent by one of our own pages; ``check_origin`` let it pass.

    Args:
        cookie: the session's; None where there is none yet, or none is needed.
        key: what the form's hidden field holds.
    """
    if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
        raise _no_form("does not say which page it comes from")
    if cookie is not None and not hmac.compare_digest(
        form_key(cookie).encode(), (key or "").encode(errors="replace")
    ):
        raise _no_form("belongs to another session")


def form_key(cookie: str | None) -> str:
    """What each form of a session's pages carries in a hidden field, and nobody else can know."""
    return hmac.new((cookie or "").encode(), b"form", hashlib.sha256).hexdigest()


def _is_own(origin: str, headers: Headers, scheme: str, public_url: str | None) -> bool:
    found = _place(origin)
    if found is None:
        return False
    if public_url is not None:
        return found == _place(public_url)
    if scheme == "https" and found[0] != "https":
        return False
    return found == _place(f"{found[0]}://{headers.get('host', '')}")


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None for what is none, such as ``null``."""
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
        "a request that changes something was expected from this server's own pages, or from a program, but its "
        f"{header} is {value[:200]!r}; {remedy}",
        remedy=remedy,
    )


def _no_form(why: str) -> ProblemError:
    remedy = "open the page again and send its form from there"
    return ProblemError(FORBIDDEN, f"the form {why}; {remedy}", remedy=remedy)
