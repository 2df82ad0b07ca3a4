"""Gives every request an id, a log line, a measurement, and an answer even after an unexpected error."""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from reshard_server.auth.limits import Drain
from reshard_server.auth.sessions import SAFE_METHODS
from reshard_server.errors.error_handlers import refuse, without_database
from reshard_server.errors.problems import INTERNAL, ProblemError
from reshard_server.errors.s3_xml import ROOT
from reshard_server.middleware.http_protocol import HttpMiddleware
from reshard_server.observability.logs import ABOUT, About, Event, audit
from reshard_server.observability.metrics import Metrics

READ_ONLY_POSTS = frozenset(
    {
        "/v1/plans",
        "/v1/checkpoints:identify",
        "/v1/checkpoints:inspect",
        "/v1/checkpoints:verify",
        "/v1/layouts:preview",
    }
)
"""POST requests that change nothing. Every other request except GET is logged, even if there is no route for it."""

_SESSIONS: dict[str, Event] = {"/sign-in": "sign-in", "/sign-out": "sign-out"}
_UNAUTHENTICATED, _S3_DENIED = 401, 403
LONGEST = 500


def audit_request(scope: Scope, status: int | None) -> None:
    """Writes a request and its status to the audit log, if it belongs there; ``status`` is None without an answer."""
    event = _event(scope, status)
    if event is None:
        return
    about, client = ABOUT.get(), scope.get("client")
    several = about.conversions if len(about.conversions) > 1 else ()
    audit(
        event,
        caller=about.caller,
        address=client[0] if client else None,
        method=scope["method"][:LONGEST],
        resource=scope["path"][:LONGEST],
        targets=about.targets,
        conversions=" ".join(several) or None,
        status=status,
    )


def _event(scope: Scope, status: int | None) -> Event | None:
    path = scope["path"]
    is_look = path in READ_ONLY_POSTS or path.startswith("/hf/")  # whose routes change nothing
    if scope["method"] not in SAFE_METHODS and not is_look:
        event = _SESSIONS.get(path, "change")
        return None if event == "change" and ABOUT.get().is_look else event
    is_unknown_token = status == _UNAUTHENTICATED and "authorization" in Headers(scope=scope)
    is_unknown_key = status == _S3_DENIED and path.startswith(ROOT) and ABOUT.get().caller is None
    return "refused" if is_unknown_token or is_unknown_key else None


LOG = logging.getLogger("reshard_server.requests")

REQUEST_ID = "X-Request-Id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


@dataclass
class _Seen:
    """The id, start and status of one request."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    status: int | None = None


@dataclass(eq=False)
class RequestLog(HttpMiddleware):
    """The log and the measurement of every request."""

    metrics: Metrics
    drain: Drain

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = _Seen(request_id(Headers(scope=scope)))
        token = ABOUT.set(About(seen.request_id))
        self.drain.open_requests += 1
        try:
            await self._answer(seen, scope, receive, send)
        finally:
            self.drain.open_requests -= 1
            self._log(seen, scope)
            ABOUT.reset(token)

    async def _answer(self, seen: _Seen, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                audit_request(scope, seen.status)  # before the client learns the outcome
                _add_headers(MutableHeaders(scope=message), seen.request_id, scope["path"])
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            problem = without_database(error)
            if problem is None:
                LOG.exception("unexpected")
                problem = ProblemError(
                    INTERNAL,
                    "the server met an error that is its own; its log has the request's id, "
                    f"{seen.request_id}",
                )
            if seen.status is not None:
                raise  # closes the connection, so that no client takes half an answer for a whole one
            await refuse(Request(scope), problem)(scope, receive, sending)

    def _log(self, seen: _Seen, scope: Scope) -> None:
        seconds = time.monotonic() - seen.started
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        status = str(seen.status or "none")
        self.metrics.requests.labels(method, route, status).observe(seconds)
        if seen.status is None:
            audit_request(scope, None)
        LOG.info(
            "request",
            extra={
                "method": method,
                "path": scope["path"][:500],
                "status": seen.status,
                "milliseconds": round(seconds * 1000, 1),
            },
        )


def request_id(headers: Headers) -> str:
    """The client's own id if it is well-formed, else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _WELL_FORMED.fullmatch(given) else secrets.token_hex(12)


def _add_headers(headers: MutableHeaders, request: str, path: str) -> None:
    headers[REQUEST_ID] = request
    headers.setdefault("X-Content-Type-Options", "nosniff")
    if path.startswith(ROOT):
        headers["x-amz-request-id"] = request
    if path.startswith("/v1/"):
        headers.setdefault("Cache-Control", "private, no-cache")
