"""The visitor of a page: signs in and out with a token, and sends forms of our own pages.

A browser sends the cookie of a session; with ``--insecure`` every visitor is admitted. Pages count against the rate limit, as
requests to the API do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from reshard_server.api.caller import Serving
from reshard_server.auth.proxies import bucket_of
from reshard_server.auth.sessions import (
    check_form,
    clear_cookie,
    cookie_of,
    form_key,
    is_secure,
    set_cookie,
)
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
from reshard_server.pages.rendering import page
from reshard_server.services import Services
from reshard_server.settings import Scope

MOST_FIELDS = 100
"""Limit of a form's fields."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The visitor of a page.

    Attributes:
        cookie: of the session; None if no token is needed.
    """

    caller: Caller
    cookie: str | None

    @property
    def name(self) -> str:
        return self.caller.name

    @property
    def form_key(self) -> str:
        """The hidden field of each form on this visitor's pages."""
        return form_key(self.cookie)

    def may(self, scope: Scope) -> bool:
        return scope in self.caller.scopes


def address_bucket(request: Request) -> str:
    """The key of an unknown visitor for the rate limit."""
    return bucket_of(request.client.host if request.client else "")


def over_tls(request: Request, serving: Services) -> bool:
    """True if the visitor's browser uses HTTPS."""
    return is_secure(request.scope["scheme"], serving.settings.public_url)


def cookie_in(request: Request, serving: Services) -> str | None:
    """The session's cookie that the browser sent."""
    return cookie_of(request.cookies, secure=over_tls(request, serving))


def visitor(request: Request, serving: Serving) -> Visitor:
    """The visitor; ProblemError for an unknown visitor, or one without the scope read."""
    found = known_visitor(request, serving)
    serving.rates.take(f"token {found.name}" if found else address_bucket(request))
    if found is None:
        raise not_signed_in()
    ABOUT.get().caller = found.name
    request.state.caller = found.caller
    check_scope(found, "read")
    return found


def known_visitor(request: Request, serving: Services) -> Visitor | None:
    """The visitor; None for an unknown one."""
    if serving.settings.insecure:
        anyone = serving.tokens.caller(None)
        return None if anyone is None else Visitor(anyone, None)
    cookie = cookie_in(request, serving)
    caller = serving.sessions.caller(cookie)
    return None if caller is None else Visitor(caller, cookie)


def check_scope(found: Visitor, scope: Scope) -> None:
    """Raises ProblemError if the visitor's token lacks a scope."""
    if not found.may(scope):
        raise ProblemError(
            FORBIDDEN,
            f"the token {found.name!r} lacks the scope {scope!r}; sign in with one that has it",
        )


def not_signed_in() -> ProblemError:
    """The problem of a visitor who is not signed in."""
    return ProblemError(UNAUTHENTICATED, "nobody is signed in, or the session has ended; sign in")


Visiting = Annotated[Visitor, Depends(visitor)]


def changer(found: Visiting) -> Visitor:
    """A visitor with the scope convert."""
    check_scope(found, "convert")
    return found


Changing = Annotated[Visitor, Depends(changer)]
"""A visitor with the scope convert; routes of forms take ``Form``, too."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a form; a missing field is empty."""

    data: FormData

    def text(self, name: str) -> str:
        """The field's text without surrounding spaces."""
        value = self.data.get(name)
        return value.strip() if isinstance(value, str) else ""

    def texts(self, name: str) -> list[str]:
        """The texts of all fields with this name, without duplicates."""
        values = [v.strip() for v in self.data.getlist(name) if isinstance(v, str)]
        return list(dict.fromkeys(v for v in values if v))

    def has(self, name: str) -> bool:
        return name in self.data


async def fields_of(request: Request) -> Fields:
    """The fields of a form; ProblemError for any other body."""
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
    fields = Fields(await request.form())
    check_texts([list(pair) for pair in fields.data.multi_items()])
    return fields


async def _own_form(request: Request, who: Changing) -> Fields:
    fields = await fields_of(request)
    check_form(request.headers, who.cookie, fields.text("form_key"))
    return fields


Form = Annotated[Fields, Depends(_own_form)]
"""The fields of a form that one of our own pages sent, by a visitor with the scope convert."""


def lines_of(text: str) -> list[str]:
    """The lines of a field that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def number_of(name: str, text: str) -> int | None:
    """A whole number; None for an empty field, ProblemError for other text."""
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise ProblemError(INVALID, f"{name} is {text[:40]!r}; expected a whole number", f"/{name}")
    return int(text)


ROUTER = APIRouter(include_in_schema=False)

SIGN_IN = "/sign-in"

UNKNOWN = (
    "The server does not know this token. Tokens begin with rsh_; ask the administrator for one."
)
EXPIRED = "This token has expired; ask the administrator for a new one."

_OWN_PATH = re.compile(r"/(?!/)[A-Za-z0-9._~/?=&%@:+,-]*")


def path_after(text: str | None) -> str:
    """The page to show after signing in: a path of this server, else the overview."""
    return text if text and _OWN_PATH.fullmatch(text) else "/"


@ROUTER.get(SIGN_IN)
def show_sign_in(serving: Serving, after: str = "/") -> Response:
    """Shows the form; without tokens it redirects to the overview."""
    if serving.settings.insecure:
        return RedirectResponse("/", 303)
    return page("sign_in.html", None, after=path_after(after), error=None)


@ROUTER.post(SIGN_IN)
async def sign_in(
    request: Request, serving: Serving, fields: Annotated[Fields, Depends(fields_of)]
) -> Response:
    """Starts a session; each attempt counts against the rate limit of the address."""
    check_form(request.headers, None, None)
    serving.rates.take(address_bucket(request))
    after = path_after(fields.text("after"))
    token = fields.text("token")
    session = await run_sync(serving.sessions.begin, token)
    if session is None:
        error = EXPIRED if serving.tokens.expired(token) else UNKNOWN
        return page("sign_in.html", None, 401, after=after, error=error)
    ABOUT.get().caller = session.caller.name
    answer = RedirectResponse(after, 303)
    set_cookie(answer, session, secure=over_tls(request, serving))
    return answer


@ROUTER.post("/sign-out")
async def sign_out(
    request: Request, serving: Serving, fields: Annotated[Fields, Depends(fields_of)]
) -> Response:
    """Ends the session."""
    cookie = cookie_in(request, serving)
    check_form(request.headers, cookie, fields.text("form_key"))
    who = await run_sync(serving.sessions.caller, cookie)
    ABOUT.get().caller = None if who is None else who.name
    await run_sync(serving.sessions.end, cookie)
    answer = RedirectResponse(SIGN_IN, 303)
    clear_cookie(answer, secure=over_tls(request, serving))
    return answer
