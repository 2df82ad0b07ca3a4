"""Requests that read: HEAD on every path that answers GET, and If-Match.

The route answers as for GET. Its first message has the status and the headers. The rest is dropped for HEAD, and for an ETag that is not
an expected one; a route that streams is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reshard_server.errors.error_handlers import refuse, routes_of
from reshard_server.errors.problems import PRECONDITION, ProblemError


class _UnwantedError(OSError):
    """Raised to stop the rest of a complete answer; responses end at an OSError, as if the client had gone."""


class ReadRequests:
    """Answers HEAD by the route of GET, and compares If-Match with the ETag of the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["type"] == "http" else ""
        expected = Headers(scope=scope).getlist("if-match") if method in ("GET", "HEAD") else []
        if method != "HEAD" and not expected:
            await self.app(scope, receive, send)
            return
        sending = _Sending(scope, receive, send, ",".join(expected), is_head=method == "HEAD")
        # A route of its own for HEAD reads less than GET.
        if sending.is_head and not any(
            route.matches(scope)[0] == Match.FULL for route in routes_of(scope["app"])
        ):
            scope["method"] = "GET"
        try:
            await self.app(scope, receive, sending)
        except (_UnwantedError, ClientDisconnect):
            if not sending.is_complete:
                raise
        finally:
            scope["method"] = method  # the log and the metrics name the method of the request


@dataclass
class _Sending:
    """Sends the wanted part of one request's answer.

    Attributes:
        expected: the ETags of If-Match; empty if there is none.
        is_complete: True once everything that the client gets was sent.
    """

    scope: Scope
    receive: Receive
    send: Send
    expected: str
    is_head: bool
    is_complete: bool = False

    async def __call__(self, message: Message) -> None:
        if self.is_complete:
            if message.get("more_body"):
                raise _UnwantedError
            return
        if message["type"] != "http.response.start":
            await self.send(message)
            return
        tag = Headers(raw=message["headers"]).get("etag")
        # Compared strongly, by RFC 9110 (13.1.1): a weak tag matches nothing.
        expected = {each.strip() for each in self.expected.split(",")} if self.expected else {"*"}
        if tag is not None and not expected & {tag, "*"}:
            self.is_complete = True
            await refuse(Request(self.scope), _changed(tag))(self.scope, self.receive, self.send)
            return
        await self.send(message)
        if self.is_head:
            self.is_complete = True
            await self.send({"type": "http.response.body", "body": b""})


def _changed(tag: str) -> ProblemError:
    return ProblemError(
        PRECONDITION,
        f"its ETag is {tag}, which the request's If-Match does not name; read it again without If-Match",
        headers={"ETag": tag},
    )
