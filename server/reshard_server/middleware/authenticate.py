"""Checks a request's origin and token before its body is read.

A caller sends a bearer token. Requests that change nothing may send a session's cookie instead, since browsers cannot
send a header with an image or an event stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from anyio.to_thread import run_sync
from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from reshard_server.auth.proxies import bucket_of
from reshard_server.auth.sessions import check_origin, cookie_of, is_secure
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import MISDIRECTED, UNAUTHENTICATED, ProblemError
from reshard_server.middleware.body_limits import refuse_unread
from reshard_server.middleware.http_protocol import HttpMiddleware
from reshard_server.observability.logs import ABOUT
from reshard_server.services import Services
from reshard_server.settings import Settings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SAFE = frozenset({"GET", "HEAD"})


@dataclass(eq=False)
class Authenticate(HttpMiddleware):
    """Admits known callers to paths that need one, and puts the caller into the request's state."""

    settings: Settings

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            if self.settings.insecure:
                check_host(request.headers)
            check_origin(request.method, request.headers, scope["scheme"], self.settings.public_url)
            path = scope["path"]
            if path.startswith(("/v1/", "/hf/")) or (
                path == "/metrics" and not self.settings.metrics_open
            ):
                scope.setdefault("state", {})["caller"] = await authenticate(request)
        except ProblemError as problem:
            await refuse_unread(problem, self.settings.body_bytes, scope, receive, send)
            return
        await self.app(scope, receive, send)


async def authenticate(request: Request) -> Caller:
    """The caller; counts the request for the rate limit, unless it reads a view. Raises ProblemError for an unknown caller."""
    services: Services = request.app.state.services
    caller = await _known(services, request)
    address = request.client.host if request.client else ""
    # A client loads a model in a range for every few MiB, and gives it up when it is refused for long; its streams are limited.
    if caller is None or not request.scope["path"].startswith("/hf/"):
        services.rates.take(f"token {caller.name}" if caller else bucket_of(address))
    if caller is None:
        raise _unknown(services, request)
    ABOUT.get().caller = caller.name
    return caller


async def _known(services: Services, request: Request) -> Caller | None:
    given = request.headers.get("authorization")
    secure = is_secure(request.scope["scheme"], services.settings.public_url)
    cookie = cookie_of(request.cookies, secure=secure)
    if given is None and cookie and request.method in _SAFE:
        caller = await run_sync(services.sessions.caller, cookie)
        if caller is not None:
            return caller
    return services.tokens.caller(_token(request))


def _token(request: Request) -> str | None:
    scheme, token = get_authorization_scheme_param(request.headers.get("authorization"))
    return token if scheme.lower() == "bearer" else None


def _unknown(services: Services, request: Request) -> ProblemError:
    token = _token(request)
    expired = services.tokens.expired(token) if token else None
    if expired is not None:
        return ProblemError(
            UNAUTHENTICATED,
            f"the token {expired.name!r} expired at {expired.expires}; ask its administrator for a new one",
            headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )
    return ProblemError(
        UNAUTHENTICATED,
        "a valid bearer token was expected in the Authorization header; send 'Authorization: Bearer TOKEN'",
        headers={"WWW-Authenticate": "Bearer"},
    )


def check_host(headers: Headers) -> None:
    """For a server without tokens, refuses requests for other hosts (DNS rebinding).

    Otherwise another site could let its name point to this machine, and its pages could send requests.
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOOPBACK:
        raise ProblemError(
            MISDIRECTED,
            f"the request is for the host {host[:200]!r}, but a server without tokens answers only to localhost and "
            "127.0.0.1; send the request to one of these, or run the server with tokens",
        )
