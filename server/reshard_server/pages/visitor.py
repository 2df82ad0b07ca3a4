"""The visitor of a page, and the check that forms come from our own pages.

A browser shows the cookie of a session; with ``--insecure`` everybody is let in. Each page counts among the
requests of a minute, as requests to the API do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import FormData

from reshard_server.api.caller import Serving
from reshard_server.auth.cookies import cookie_of, is_secure
from reshard_server.auth.origins import check_form, form_key
from reshard_server.auth.proxies import bucket_of
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import (
    FORBIDDEN,
    INVALID,
    MALFORMED,
    UNAUTHENTICATED,
    UNSUPPORTED,
    ProblemError,
)
from reshard_server.middleware.body_limits import check_texts
from reshard_server.observability.logs import ABOUT
from reshard_server.services import Services
from reshard_server.settings import Scope

MOST_FIELDS = 100
"""Of a form."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at a page.

    Attributes:
        cookie: of the session; None where no token is needed.
    """

    caller: Caller
    cookie: str | None

    @property
    def name(self) -> str:
        return self.caller.name

    @property
    def form_key(self) -> str:
        """What each form of this visitor's pages carries."""
        return form_key(self.cookie)

    def may(self, scope: Scope) -> bool:
        return scope in self.caller.scopes


def address_bucket(request: Request) -> str:
    """What somebody unknown is counted by."""
    return bucket_of(request.client.host if request.client else "")


def over_tls(request: Request, serving: Services) -> bool:
    """Whether the visitor's browser reaches the pages over HTTPS."""
    return is_secure(request.scope["scheme"], serving.settings.public_url)


def cookie_in(request: Request, serving: Services) -> str | None:
    """The session's cookie that the browser showed."""
    return cookie_of(request.cookies, secure=over_tls(request, serving))


def visitor(request: Request, serving: Serving) -> Visitor:
    """Who looks; ProblemError where nobody known does, or nobody who may read."""
    found = known_visitor(request, serving)
    serving.rates.take(f"token {found.name}" if found else address_bucket(request))
    if found is None:
        raise nobody()
    ABOUT.get().caller = found.name
    request.state.caller = found.caller
    check_scope(found, "read")
    return found


def known_visitor(request: Request, serving: Services) -> Visitor | None:
    """Who looks; None where nobody known does."""
    if serving.settings.insecure:
        anyone = serving.tokens.caller(None)
        return None if anyone is None else Visitor(anyone, None)
    cookie = cookie_in(request, serving)
    caller = serving.sessions.caller(cookie)
    return None if caller is None else Visitor(caller, cookie)


def check_scope(found: Visitor, scope: Scope) -> None:
    """ProblemError where the visitor's token lacks a scope."""
    if not found.may(scope):
        raise ProblemError(
            FORBIDDEN,
            f"the token {found.name!r} lacks the scope {scope!r}; sign in with one that has it",
            remedy="sign in with one that has it",
        )


def nobody() -> ProblemError:
    """What is answered where nobody is signed in."""
    return ProblemError(
        UNAUTHENTICATED,
        "nobody is signed in here, or not any more; sign in",
        remedy="sign in",
    )


Visiting = Annotated[Visitor, Depends(visitor)]


def changer(found: Visiting) -> Visitor:
    """A visitor who may change something."""
    check_scope(found, "convert")
    return found


Changing = Annotated[Visitor, Depends(changer)]
"""A visitor who may change something; what is sent by a form takes ``Form`` besides."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a form that was sent; what was not sent is empty."""

    data: FormData

    def text(self, name: str) -> str:
        """Without the spaces around it."""
        value = self.data.get(name)
        return value.strip() if isinstance(value, str) else ""

    def texts(self, name: str) -> list[str]:
        """What each field of this name holds, once each."""
        values = [v.strip() for v in self.data.getlist(name) if isinstance(v, str)]
        return list(dict.fromkeys(v for v in values if v))

    def has(self, name: str) -> bool:
        return name in self.data


async def fields_of(request: Request) -> Fields:
    """What a form holds; ProblemError where it is none."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/x-www-form-urlencoded":
        raise ProblemError(
            UNSUPPORTED,
            f"the body is {given or 'of no type'!r}; expected a form of this server's pages; open the page and send its "
            "form from there",
        )
    if (await request.body()).count(b"&") >= MOST_FIELDS:
        raise ProblemError(
            MALFORMED,
            f"the form has more than {MOST_FIELDS} fields; open the page and send its form",
        )
    found = Fields(await request.form())
    check_texts([list(pair) for pair in found.data.multi_items()])
    return found


async def _own_form(request: Request, who: Changing) -> Fields:
    found = await fields_of(request)
    check_form(request.headers, who.cookie, found.text("form_key"))
    return found


Form = Annotated[Fields, Depends(_own_form)]
"""The fields of a form that one of our own pages sent, by somebody who may change something."""


def lines_of(text: str) -> list[str]:
    """Of a field of several lines, those that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def number_of(name: str, text: str) -> int | None:
    """A whole number; None for an empty field, ProblemError for what is none."""
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise ProblemError(INVALID, f"{name} is {text[:40]!r}; expected a whole number", f"/{name}")
    return int(text)
