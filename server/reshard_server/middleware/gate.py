"""The gate: checks origin and token before anything of the body is read.

A caller is known by a bearer token, or, where nothing is changed, by the cookie of a session: browsers
cannot send a header with an image or an event stream.
"""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from reshard_server.auth.cookies import cookie_of, is_secure
from reshard_server.auth.origins import check_origin
from reshard_server.auth.proxies import bucket_of
from reshard_server.auth.tokens import Caller
from reshard_server.errors.error_handlers import refuse
from reshard_server.errors.problems import MISDIRECTED, UNAUTHENTICATED, ProblemError
from reshard_server.middleware.body_limits import UNREAD_BODIES, throw_away
from reshard_server.observability.logs import ABOUT
from reshard_server.services import Services
from reshard_server.settings import Settings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SAFE = frozenset({"GET", "HEAD"})


class Gate:
    """Lets known callers to whatever needs one; the caller is then in the request's state."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            if self.settings.insecure:
                check_host(request.headers)
            check_origin(request.method, request.headers, scope["scheme"], self.settings.public_url)
            if self._needs_caller(scope["path"]):
                scope.setdefault("state", {})["caller"] = await authenticate(request)
        except ProblemError as problem:
            await self._leave_body(request.headers, receive)
            await refuse(request, problem)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _needs_caller(self, path: str) -> bool:
        if path == "/metrics":
            return not self.settings.metrics_open
        return path.startswith("/v1/")

    async def _leave_body(self, headers: Headers, receive: Receive) -> None:
        """Throws away what is sent already, so that the client gets to read the refusal."""
        sends = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if sends and "expect" not in headers:
            await throw_away(receive, self.settings.body_bytes * UNREAD_BODIES)


async def authenticate(request: Request) -> Caller:
    """Who asks, counted among the requests of a minute; ProblemError where nobody known does."""
    services: Services = request.app.state.services
    caller = await _known(services, request)
    address = request.client.host if request.client else ""
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
        found = await run_sync(services.sessions.caller, cookie)
        if found is not None:
            return found
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
        "a known bearer token was expected in the Authorization header; send 'Authorization: Bearer TOKEN'",
        headers={"WWW-Authenticate": "Bearer"},
    )


def check_host(headers: Headers) -> None:
    """Where no token is needed, refuses what was meant for another host.

    A page of another site could otherwise have its name point to this machine, and be let in.
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOOPBACK:
        raise ProblemError(
            MISDIRECTED,
            f"the request is for the host {host[:200]!r}, but a server without tokens answers to localhost and "
            "127.0.0.1 only; ask for one of these, or run the server with tokens",
        )
