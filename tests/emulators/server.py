"""A server of objects on loopback: a thread for each connection, with faults and a limited link."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import traceback
from collections.abc import Callable
from io import BufferedReader
from typing import Literal, Protocol, Self

import msgspec
import numpy as np

from tests.emulators import faults as f
from tests.emulators.apis.error_answers import ErrorAnswer, RefusedRequestError
from tests.emulators.link import NO_LIMITS, Clock, Link, Stream
from tests.emulators.messages import Request, Response, read_head
from tests.emulators.objects import Objects
from tests.emulators.request_log import LoggedRequest, RequestLog
from tests.emulators.uploads import Uploads


class Options(msgspec.Struct, frozen=True):
    """How a store differs from the usual.

    ``conditions``: conditions of writes are kept, ignored (as by some stores that speak S3) or refused with 501. ``begin``: what
    paths begin with, such as ``/namespace``, where the endpoint has a path.
    """

    page_keys: int = 1000
    least_part_bytes: int = 5 << 20
    conditions: Literal["kept", "ignored", "refused"] = "kept"
    begin: str = ""


class Api(Protocol):
    """What a cloud answers."""

    def operation(self, request: Request) -> str: ...
    def place(self, request: Request) -> tuple[str, str]:
        """The bucket and the key of a request."""
        ...

    def answer(self, request: Request) -> Response: ...
    def error(self, request: Request, error: ErrorAnswer) -> Response: ...


class _Closed(Exception):  # noqa: N818  a signal, not an error
    """The connection ends here."""


class Server:
    """A store on a free port of 127.0.0.1, until ``close``; ``failures`` has what went wrong in the server itself."""

    def __init__(self, make_api: Callable[[Server], Api]) -> None:
        self.objects = Objects()
        self.uploads = Uploads(self.objects)
        self.faults = f.Faults()
        self.log = RequestLog()
        self.options = Options()
        self.link = NO_LIMITS
        self.failures: list[str] = []
        self._totals = (Clock(), Clock())
        self._later: list[tuple[int, Request]] = []
        self._answered = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._connections: set[socket.socket] = set()
        self._api = make_api(self)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.faults.clear()
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """As at the start: no faults, no log, no limits; objects stay."""
        self.faults.clear()
        self.log.clear()
        self.options, self.link = Options(), NO_LIMITS
        self.objects.clock_offset_s = 0.0
        self.failures = []
        with self._lock:
            self._later = []

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError):
                if self._is_closed:
                    return
                # Against a test that leaves this process no descriptor or thread for a moment: later ones need the server.
                time.sleep(0.01)

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._connections.add(connection)
        lines = connection.makefile("rb")
        try:
            link: Link | None = None
            while (request := read_head(lines)) is not None:
                if link != self.link:
                    link, exchange = self.link, _Exchange(self, connection, lines)
                request.path = request.path.removeprefix(self.options.begin)
                exchange.run(request)
        except (_Closed, OSError):
            pass
        except Exception:  # noqa: BLE001 - a mistake of the server fails the test that finds it here
            self.failures.append(traceback.format_exc())
        finally:
            with self._lock:
                self._connections.discard(connection)
            # The file shares the descriptor, which closes with the last of the two.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            lines.close()
            connection.close()

    def do(self, request: Request) -> Response:
        """Does a request."""
        try:
            return self._api.answer(request)
        except RefusedRequestError as error:
            return self._api.error(request, error.answer)

    def do_later(self, request: Request, requests: int) -> None:
        with self._lock:
            self._later.append((self._answered + requests, request))

    def answered(self) -> None:
        """Counts an answer, which is about to be sent, and does what came too late until now."""
        with self._lock:
            self._answered += 1
            due = [request for at, request in self._later if at <= self._answered]
            self._later = [later for later in self._later if later[0] > self._answered]
        for request in due:
            self.do(request)

    def logged(self, request: Request) -> LoggedRequest:
        bucket, key = self._api.place(request)
        entry = LoggedRequest(
            self._api.operation(request), request.method, bucket, key, request.query, request.headers
        )  # fmt: skip
        self.log.add(entry)
        return entry

    def place(self, request: Request) -> tuple[str, str]:
        return self._api.place(request)

    def error(self, request: Request, error: ErrorAnswer) -> Response:
        return self._api.error(request, error)

    def streams(self) -> tuple[Stream, Stream]:
        """The two directions of a new connection: in, out."""
        return Stream(self.link, self._totals[0]), Stream(self.link, self._totals[1])


class _Exchange:
    """Requests and answers on one connection, one after another."""

    def __init__(self, server: Server, connection: socket.socket, lines: BufferedReader) -> None:
        self.server, self.connection, self.lines = server, connection, lines
        self.incoming, self.outgoing = server.streams()

    def run(self, request: Request) -> None:
        entry = self.server.logged(request)
        fault = self.server.faults.strike(
            entry.operation, f"{entry.bucket}/{entry.key}", request.headers
        )
        entry.fault = type(fault).__name__ if fault else ""
        time.sleep(self.server.link.latency_s)
        self.read_body(request, fault)
        entry.bytes_in = len(request.body)
        entry.bucket, entry.key = self.server.place(request)  # some bodies name what they are of
        response = self.respond(request, fault)
        if request.method == "HEAD":
            size = response.body_bytes if response.size is None else response.size
            response = msgspec.structs.replace(response, body=(), size=size)
        entry.status, entry.bytes_out = response.status, response.body_bytes
        self.server.answered()  # late writes come before the answer is sent
        self.send(response, fault)
        if request.header("connection").lower() == "close":
            raise _Closed

    def read_body(self, request: Request, fault: f.Fault | None) -> None:
        if "transfer-encoding" in request.headers:
            raise NotImplementedError(f"{request.method} {request.path} with a body in HTTP chunks")
        size = int(request.header("content-length") or 0)
        if request.header("expect").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        wanted = min(size, fault.after_bytes) if isinstance(fault, f.BreakUpload) else size
        body = np.empty(wanted, np.uint8).data
        at = 0
        while at < wanted:
            piece = self.incoming.piece_bytes or wanted
            count = self.lines.readinto(body[at : at + piece])
            if not count:
                raise _Closed
            at += count
            self.incoming.passed(count)
        if isinstance(fault, f.BreakUpload):
            raise _Closed
        if isinstance(fault, f.Flip) and fault.upload and size:
            body[fault.at_byte % size] ^= 1
        request.body = body

    def respond(self, request: Request, fault: f.Fault | None) -> Response:
        if isinstance(fault, f.Refuse):
            return self.server.error(request, fault.error)
        self.before(request, fault)
        return self.after(self.server.do(request), fault)

    def before(self, request: Request, fault: f.Fault | None) -> None:
        """What a fault does before the request is done."""
        match fault:
            case f.Delay(seconds):
                self.server.faults.cleared.wait(seconds)
            case f.DoTwice():
                self.server.do(request)
            case f.DoLater(requests):
                self.server.do_later(request, requests)
                raise _Closed
            case f.Call(function, False):
                function()
            case f.Hang(False):
                self.hang()
            case f.Disconnect(False):
                raise _Closed

    def after(self, response: Response, fault: f.Fault | None) -> Response:
        """What it does between that and the answer."""
        match fault:
            case f.Flip(at_byte, False):
                return _flipped(response, at_byte)
            case f.Call(function, True):
                function()
            case f.Hang(True):
                self.hang()
            case f.Disconnect(True):
                raise _Closed
        return response

    def hang(self) -> None:
        self.server.faults.cleared.wait()
        raise _Closed

    def send(self, response: Response, fault: f.Fault | None) -> None:
        head = response.head(self.server.objects.now())
        left = fault.after_bytes if isinstance(fault, f.BreakAnswer) else None
        if left is None and not self.outgoing.piece_bytes and response.body_bytes < 1 << 16:
            self.connection.sendall(b"".join([head, *response.body]))
            return
        self.connection.sendall(head)
        for segment in response.body:
            part = memoryview(segment)[:left]
            piece = self.outgoing.piece_bytes or len(part) or 1
            for at in range(0, len(part), piece):
                self.outgoing.passed(len(part[at : at + piece]))
                self.connection.sendall(part[at : at + piece])
            left = None if left is None else left - len(part)
        if left is not None:
            raise _Closed


def _flipped(response: Response, at_byte: int) -> Response:
    body = bytearray().join(response.body)
    if body:
        body[at_byte % len(body)] ^= 1
    return msgspec.structs.replace(response, body=(memoryview(body),))
