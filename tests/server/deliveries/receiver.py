"""A receiver of notifications on loopback: keeps what arrives, and answers as the path says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.server.waiting import until

SECRETS = (bytes(range(32)), bytes(range(32, 64)))


@dataclass(frozen=True)
class Arrived:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def signatures(self) -> list[str]:
        """Those that the secrets of the tests make of it, by the words of Standard Webhooks and not by the code of the server."""
        h = self.headers
        text = h["webhook-id"].encode() + b"." + h["webhook-timestamp"].encode() + b"." + self.body
        made = (hmac.new(secret, text, hashlib.sha256).digest() for secret in SECRETS)
        return ["v1," + base64.b64encode(one).decode() for one in made]


@dataclass
class Receiver:
    """The requests that have arrived, oldest first."""

    url: str
    arrived: list[Arrived] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def at(self, path: str) -> list[Arrived]:
        return [one for one in self.arrived if one.path == path]

    def first(self, path: str) -> Arrived:
        return until(lambda: self.at(path), 60)[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.receiver.arrived.append(Arrived(self.path, headers, body))
        kind = re.split("[-?]", self.path.strip("/"))[0]
        with suppress(OSError):
            getattr(self, kind)()

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def ok(self) -> None:
        self.answer(204)

    def later(self) -> None:
        self.answer(200 if len(self.server.receiver.at(self.path)) > 2 else 500)

    def broken(self) -> None:
        self.answer(500)

    def away(self) -> None:
        self.answer(410)

    def moved(self) -> None:
        self.answer(307, Location=f"{self.server.receiver.url}/ok-behind")

    def slow(self) -> None:
        self.server.receiver.released.wait(60)
        self.answer(200)

    def endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.receiver.released.is_set():
            self.wfile.write(b"x" * 4096)

    def drip(self) -> None:
        """Headers without an end, a byte now and then: no single wait is long."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nA: ")
        while not self.server.receiver.released.wait(0.05):
            self.wfile.write(b"a")

    def log_message(self, *_: object) -> None: ...


@contextmanager
def receiving(
    port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    kind = _SixServer if ":" in host else _Server
    server = kind((host, port), _Handler)
    shown = f"[{host}]" if ":" in host else host
    server.receiver = receiver = Receiver(f"http://{shown}:{server.server_port}")
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def secrets_file(folder: Path) -> Path:
    file = folder / "secrets"
    file.write_text("".join(f"whsec_{base64.b64encode(one).decode()}\n" for one in SECRETS))
    return file


def recently(seconds: str) -> bool:
    return abs(time.time() - int(seconds)) < 300
