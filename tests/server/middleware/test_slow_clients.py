"""Clients that stall: in a request's head, in its body, between requests, and while they read an answer."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.server.live import Live, live
from tests.server.tokens import TOKENS
from tests.server.waiting import until

AUTH = f"Authorization: Bearer {TOKENS['ann'][0]}"
URL = "/v1/conversions"
PATIENCE = 120.0
"""Far more than the server's limits, for a machine that is busy."""

MANY = 64 << 20
"""Bytes of a tensor; what kernel and server buffer for a client is far less."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("slow")
    reshard.save(folder / "data" / "run", {"w": np.zeros(MANY // 4, np.float32)})
    limits = {"head_seconds": 1.0, "body_seconds": 1.0, "stalled_seconds": 1.0}
    with live(folder, module="tests.server.idle", **limits) as found:
        yield found


def connected(server: Live) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def rest(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    with suppress(ConnectionError):  # what was sent behind its answer was not read
        while part := connection.recv(65536):
            found += part
    return found


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)["detail"]


@pytest.mark.parametrize("said", [b"G", b"GET /livez HTTP/1.1\r\nHost: x\r\nA: "])
def test_half_a_head_is_refused(server: Live, said: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(said)
        assert problem(rest(connection)) == (
            408,
            "the request's line and headers did not arrive within 1 seconds; send them at once",
        )


def test_a_head_byte_by_byte_is_refused(server: Live) -> None:
    with connected(server) as connection:
        connection.settimeout(0.1)
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        answer, end = b"", time.monotonic() + PATIENCE
        while not answer:
            assert time.monotonic() < end
            try:
                connection.sendall(b"A")
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        assert problem(answer + rest(connection))[0] == 408


def test_a_client_that_says_nothing_is_left(server: Live) -> None:
    with connected(server) as connection:
        assert rest(connection) == b""


def test_a_second_request_has_the_same_limit(server: Live) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        first = connection.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost")
        assert b"HTTP/1.1 408 " in first + rest(connection)


def test_between_requests_a_connection_is_closed(server: Live) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


def test_half_a_body_is_refused(server: Live) -> None:
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\n{AUTH}\r\nContent-Type: application/json\r\n"
    for more in ("Content-Length: 9\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        with connected(server) as connection:
            connection.sendall((head + more).encode())
            assert problem(rest(connection)) == (
                408,
                "the body did not arrive within 1 seconds; send it at once",
            )


def test_a_slow_request_that_makes_it_is_answered(server: Live) -> None:
    """On a machine that is busy, it makes it at a later try."""

    def ask() -> bytes:
        with connected(server) as connection, suppress(ConnectionError):
            for part in (b"GET /livez HT", b"TP/1.1\r\nHost: x\r\nConnection: close\r", b"\n\r\n"):
                connection.sendall(part)
                time.sleep(0.05)
            return rest(connection)
        return b""

    until(lambda: ask().startswith(b"HTTP/1.1 200 "))


def test_who_takes_nothing_of_a_stream_is_cut_off(server: Live) -> None:
    before = sockets(server)
    with connected(server) as connection:
        connection.sendall(
            f"GET /v1/tensors?checkpoint=data/run&name=w HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        with server.client() as client:
            until(lambda: "reshard_streams_open 0.0" in client.get("/metrics").text)
        until(lambda: "cut off" in server.log.read_text())
        assert len(rest(connection)) < MANY
    until(lambda: sockets(server) <= before)


def test_who_reads_no_answer_is_cut_off(server: Live) -> None:
    before = sockets(server)
    request = f"GET /openapi.json HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n\r\n".encode()
    with connected(server) as connection:
        connection.settimeout(0.5)
        with pytest.raises((TimeoutError, ConnectionError)):
            while True:
                connection.sendall(request * 50)
    until(lambda: sockets(server) <= before)


def sockets(server: Live) -> int:
    """How many the server has open."""
    found = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return sum(os.path.realpath(fd).rpartition("/")[2].startswith("socket:") for fd in found)
