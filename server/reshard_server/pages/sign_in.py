"""The pages for signing in with a token, and for signing out."""

from __future__ import annotations

import re
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from reshard_server.api.caller import Serving
from reshard_server.auth.origins import check_form
from reshard_server.auth.sessions import clear_cookie, set_cookie
from reshard_server.observability.logs import ABOUT
from reshard_server.pages.rendering import page
from reshard_server.pages.visitor import Fields, address_bucket, cookie_in, fields_of, over_tls

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
