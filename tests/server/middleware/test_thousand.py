"""A thousand hostile requests: each is refused with a problem, and the server is afterwards as it was."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.server.live import Live, live
from tests.server.middleware.hostile import Hostile, Maker
from tests.server.tokens import TOKENS
from tests.server.waiting import until

NUMBER = 1000
SEED = 20261121
AT_ONCE = 6
PATIENCE = 120.0
GROWTH_BYTES = 96 << 20
"""What the interpreter may keep of modules that were loaded and of buffers: far less than 1,000 bodies."""

LAYOUT = {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("thousand")
    data, outside = folder / "data", folder / "outside"
    reshard.save(data / "run", {"w": np.zeros((8, 8), np.float32)})
    reshard.save(outside / "x", {"w": np.zeros((8, 8), np.float32)})
    (data / "out").symlink_to("../outside")
    (data / "absolute").symlink_to(outside)
    limits = {"body_bytes": 20_000, "header_bytes": 4096, "requests_per_minute": 10**6}
    slow = {"head_seconds": 1.0, "body_seconds": 1.0}
    with live(folder, module="tests.server.idle", **limits, **slow) as found:
        yield found


@pytest.fixture(scope="module")
def known(server: Live) -> str:
    """A conversion of ann's, and a layout ``mine``."""
    with server.client() as client:
        client.put("/v1/layouts/mine", json={"layout": LAYOUT}).raise_for_status()
        body = {"source": "data/run", "target": "data/b"}
        found: str = client.post("/v1/conversions", json=body).json()["id"]
    return found


def sent(server: Live, data: bytes) -> bytes:
    """All that the server says to these bytes until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        with suppress(ConnectionError):  # it was answered, and closed, before all was read
            connection.sendall(data)
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    return answer


def wrong(server: Live, hostile: Hostile, real: str) -> str | None:
    """What is wrong with the answer; None if it is a correct problem document."""
    answer = sent(server, hostile.data)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    body = body[: int(length[1])] if length else body  # what came behind may be answered too
    try:
        status = int(head.split()[1])
        document = json.loads(body)
        members = {"type", "title", "status", "detail"} - document.keys()
    except (IndexError, ValueError):
        return f"no problem document: {answer[:300]!r}"
    if not 400 <= status < 500 or document["status"] != status or members:
        return f"{status}: {body[:300]!r}"
    if b"content-type: application/problem+json" not in head.lower():
        return f"not said to be a problem: {head!r}"
    if real.encode() in answer or any(s.encode() in body for s, *_ in TOKENS.values()):
        return f"tells what it must not: {body[:300]!r}"
    if document["type"] == "urn:reshard:problem:invalid-request" and "field" not in document:
        return f"names no field: {body[:300]!r}"
    return None


def test_a_thousand_hostile_requests(server: Live, known: str) -> None:
    real = str(server.log.parent)
    all_of = [
        Hostile(
            h.kind, h.data.replace(b"/conversions/ID", b"/conversions/" + known.encode()), h.half
        )
        for h in Maker(SEED).all(NUMBER)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda h: wrong(server, h, real), all_of[:100]))  # whatever is made once
        before = Held.of(server)
        found = list(pool.map(lambda h: wrong(server, h, real), all_of))
    bad = [f"{h.kind}: {w}" for h, w in zip(all_of, found, strict=True) if w]
    assert not bad, f"{len(bad)} of {NUMBER}:\n" + "\n".join(sorted(bad)[:60])
    before.check(server)
    with server.client() as client:
        assert client.get("/livez").status_code == 200
        assert [c["id"] for c in client.get("/v1/conversions").json()["conversions"]] == [known]
    check_log(server, real)


def check_log(server: Live, real: str) -> None:
    lines = server.lines()
    assert len(lines) > NUMBER / 2
    assert [x for x in lines if x["level"] == "error" or "trace" in x] == []
    text = "\n".join(json.dumps(x) for x in lines)
    assert real not in text
    for secret, *_ in TOKENS.values():
        assert secret not in text


class Held:
    """The resources of a server: memory, threads, sockets."""

    def __init__(self, rss_bytes: int, threads: int, sockets: int) -> None:
        self.rss_bytes, self.threads, self.sockets = rss_bytes, threads, sockets

    @classmethod
    def of(cls, server: Live) -> Held:
        process = Path(f"/proc/{server.process.pid}")
        pages = int((process / "statm").read_text().split()[1])
        open_files = [os.path.realpath(fd).rpartition("/")[2] for fd in (process / "fd").iterdir()]
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(list((process / "task").iterdir())),
            sum(name.startswith("socket:") for name in open_files),
        )

    def check(self, server: Live) -> None:
        """The server uses no more than then, once open connections have ended."""
        until(lambda: Held.of(server).sockets <= self.sockets)
        now = Held.of(server)
        assert now.rss_bytes < self.rss_bytes + GROWTH_BYTES
        assert (
            now.threads <= self.threads + 40
        )  # the pool for requests, which is made as it is needed
