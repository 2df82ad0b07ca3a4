"""HTTP/1.1 requests and responses, as far as clients of object stores use it."""

from __future__ import annotations

from email.utils import formatdate
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote

import msgspec

REASONS = {
    200: "OK", 201: "Created", 204: "No Content", 206: "Partial Content", 301: "Moved Permanently",
    304: "Not Modified", 308: "Resume Incomplete", 400: "Bad Request", 401: "Unauthorized",
    403: "Forbidden", 404: "Not Found", 409: "Conflict", 412: "Precondition Failed",
    416: "Requested Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error",
    501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


class Request(msgspec.Struct):
    """One request; the names of its headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: memoryview = memoryview(b"")

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    @property
    def raw_segments(self) -> list[str]:
        return self.path.lstrip("/").split("/")

    @property
    def bucket(self) -> str:
        return unquote(self.path[1:].partition("/")[0])

    @property
    def key(self) -> str:
        return unquote(self.path[1:].partition("/")[2])


class Response(msgspec.Struct, frozen=True):
    """One answer. ``size`` replaces the length of the body in the answer to HEAD."""

    status: int = 200
    headers: dict[str, str] = {}
    body: tuple[bytes | memoryview, ...] = ()
    size: int | None = None

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.body))

    def head(self, now: float) -> bytes:
        size = self.body_bytes if self.size is None else self.size
        lines = [
            f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Unknown')}",
            f"Date: {formatdate(now, usegmt=True)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            *([] if self.status in {204, 304} else [f"Content-Length: {size}"]),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def read_head(stream: BinaryIO) -> Request | None:
    """The next request of a connection without its body, or None at the end."""
    line = stream.readline(1 << 16)
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers = {}
    while (line := stream.readline(1 << 16)).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    path, _, query = target.partition("?")
    return Request(method, path, dict(parse_qsl(query, keep_blank_values=True)), headers)


def without_aws_chunks(body: memoryview) -> tuple[memoryview, dict[str, str]]:
    """The data of a body that was sent as ``aws-chunked``, and the headers that trail it."""
    data, text, at = bytearray(), body.tobytes(), 0
    while True:
        end = text.index(b"\r\n", at)
        size = int(text[at:end].split(b";")[0], 16)
        at = end + 2
        if size == 0:
            break
        data += text[at : at + size]
        at += size + 2
    trailer = dict(line.split(b":", 1) for line in text[at:].split(b"\r\n") if b":" in line)
    return memoryview(data), {k.decode().lower(): v.strip().decode() for k, v in trailer.items()}
