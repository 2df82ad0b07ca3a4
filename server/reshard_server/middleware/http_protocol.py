"""HTTP connections: problem documents for malformed requests, time limits for clients that stall, and rules of HTTP for every route.

A client can keep a connection open by not sending its request, or by not reading the answer. The application sees a
request only once its line and headers are complete, so their time limit is here; that of the body is in
``body_limits``. A client that does not read its answer is cut off.

``Expect: 100-continue``: reading the body sends ``100 Continue``. After an answer without it, the client may or may not send the
body. So the connection is closed, and no part of the body is taken for another request.

Clients that use a proxy send request targets in absolute form (RFC 9112, 3.2.2): ``GET http://host/path``.

``HEAD`` on every path that answers GET, and ``If-Match``: the route answers as for GET. Its first message has the status and the headers.
The rest is dropped for HEAD, and for an ETag that is not an expected one; a route that streams is stopped.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from reshard_server.errors.error_handlers import refuse, routes_of
from reshard_server.errors.problems import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    MEDIA_TYPE,
    PRECONDITION,
    TOO_SLOW,
    ProblemError,
)
from reshard_server.settings import Settings


@dataclass(eq=False)
class _Deadline:
    """A timer that calls a function once it runs out."""

    loop: asyncio.AbstractEventLoop
    seconds: float
    on_timeout: Callable[[], None]
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer, unless it runs already."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._run_out)

    def cancel(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_out(self) -> None:
        self._timer = None
        self.on_timeout()


class ProblemProtocol(H11Protocol):
    """uvicorn's protocol, but with problem documents for malformed requests instead of plain text.

    Attributes:
        head_seconds: time for the line and the headers of a request, from its first byte or from the start of the
            connection.
        stalled_seconds: a client that reads nothing for this long is cut off.
    """

    head_seconds: float
    stalled_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn names a narrower transport
        """Starts the time limit of the first request."""
        super().connection_made(transport)
        self._head = _Deadline(self.loop, self.head_seconds, self._head_too_slow)
        self._reading = _Deadline(self.loop, self.stalled_seconds, self._nothing_read)
        self._unread = 0
        self._head.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops both timers."""
        self._head.cancel()
        self._reading.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Starts the timer of a request's head, or stops it once the head is complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head.start()
        else:
            self._head.cancel()

    def _head_too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(
                ProblemError(
                    TOO_SLOW,
                    f"the request's line and headers did not arrive within {self.head_seconds:g} seconds; send them at "
                    "once",
                )
            )
        else:
            self.transport.close()  # there is no request to answer

    def pause_writing(self) -> None:
        """Starts the time limit of a client that has not read all output."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._reading.start()

    def resume_writing(self) -> None:
        """Stops the time limit of a client that reads again."""
        self._reading.cancel()
        super().resume_writing()

    def _nothing_read(self) -> None:
        """Cuts the connection, unless the client has read something since."""
        left = self.transport.get_write_buffer_size()
        if left < self._unread:
            self._unread = left
            self._reading.start()
        else:
            self.logger.warning("a connection was cut off: its client reads nothing")
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's signature)
        """Refuses a request that h11 could not parse, and closes the connection."""
        self._head.cancel()
        self._refuse(self._problem())

    def _refuse(self, problem: ProblemError) -> None:
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # a second answer would be taken for the rest of the first
            return
        body = json.dumps(problem.document()).encode()
        head = h11.Response(
            status_code=problem.kind.status,
            headers=[
                (b"content-type", MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _problem(self) -> ProblemError:
        buffered = len(self.conn.trailing_data[0])
        limit = self.config.h11_max_incomplete_event_size or 0
        if buffered > limit:
            return ProblemError(
                HEADERS_TOO_LARGE,
                f"the request's line and headers have more than {limit} bytes; send less",
            )
        return ProblemError(
            MALFORMED, "this is not an HTTP/1.1 request; send one as RFC 9112 describes"
        )


def protocol_of(settings: Settings) -> type[ProblemProtocol]:
    """The protocol class with the limits of these settings; uvicorn makes an instance per connection."""

    class Limited(ProblemProtocol):
        head_seconds = settings.head_seconds
        stalled_seconds = settings.stalled_seconds

    return Limited


def waits_with_body(scope: Scope) -> bool:
    """True if the client waits for ``100 Continue`` before it sends the body."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


@dataclass(eq=False)
class HttpMiddleware(ABC):
    """Middleware of HTTP requests; anything else, such as the application's start, passes unchanged."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.answer if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, usually by the application."""


class CloseUnlessBodyRead(HttpMiddleware):
    """Closes the connection after an answer that did not need the body."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not waits_with_body(scope):
            await self.app(scope, receive, send)
            return
        was_read = False

        async def receiving() -> Message:
            nonlocal was_read
            was_read = True
            return await receive()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and not was_read:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self.app(scope, receiving, sending)


_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/@]+)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)
"""Matches no user names: RFC 9110 (4.2.4) takes them for an error, and such a target has no path here."""


class OriginForm(HttpMiddleware):
    """Passes on a target in absolute form as its path and its host; the header Host is then ignored, by the RFC."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if absolute := _ABSOLUTE.fullmatch(scope.get("raw_path") or b""):
            path = absolute["path"] or b"/"
            scope["raw_path"], scope["path"] = path, unquote(path.decode("ascii"))
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [(b"host", absolute["host"]), *others]
        await self.app(scope, receive, send)


class _UnwantedError(OSError):
    """Raised to stop the rest of a complete answer; responses end at an OSError, as if the client had gone."""


class ReadRequests(HttpMiddleware):
    """Answers HEAD by the route of GET, and compares If-Match with the ETag of the answer."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
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
