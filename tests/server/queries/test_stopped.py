"""Questions end: with their client, with their server, with their process; and their number is limited."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import httpx
import numpy as np
import pytest
from reshard_server.auth.limits import Drain, Slots
from reshard_server.errors.problems import ProblemError
from reshard_server.jobs import ask as questions
from reshard_server.jobs.ask import Answered, Question, Questions
from reshard_server.worker.children import Children
from reshard_server.worker.wording import RootNames
from safetensors.numpy import save_file

import reshard
from tests.server.forked import STEP_BACK
from tests.server.jobs.world import children_of, is_gone
from tests.server.live import Live, live
from tests.server.tokens import TOKENS
from tests.server.waiting import until

GIB = 1 << 30
ASK = "reshard_server.jobs.ask"
WAITS = {f"{ASK}.SLOT_SECONDS": 1.0, f"{ASK}.GRACE_SECONDS": 0.5}
SECONDS = 60.0
"""For what ends within ``GRACE_SECONDS`` where nothing else goes on."""


@pytest.fixture(scope="module", autouse=True)
def stepping_back() -> Iterator[None]:
    """A child that reads steps back, so that it is seen before it has answered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STEP_BACK, "1")
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("stopped")
    rng = np.random.default_rng(0)
    tree = {f"w{i:03}": rng.integers(0, 1 << 30, (64, 1024), np.int32) for i in range(400)}
    reshard.save(folder / "data" / "large", tree)
    with live(folder, reads=1, running=1, waits=WAITS) as found:
        yield found


def post(server: Live, verb: str, **body: object) -> socket.socket:
    """A connection on which a question was asked, and nothing has been read."""
    text = json.dumps({"checkpoint": "data/large", "max_memory": "17MiB", **body}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(
        f"POST /v1/checkpoints:{verb} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann'][0]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        + text
    )
    return connection


def the_child(server: Live) -> int:
    """Found before it can have answered."""
    return until(lambda: children_of(server.process.pid), pause=0.005)[0]


def freeze(server: Live) -> int:
    """The child, stopped so that it does not end on its own."""
    pid = the_child(server)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_client_that_goes_away_takes_its_child_along(server: Live) -> None:
    connection = post(server, "verify")
    pid = freeze(server)
    connection.close()
    assert is_gone(pid, SECONDS)
    with server.client() as client:  # and the place is free again
        answer = client.post("/v1/checkpoints:verify", json={"checkpoint": "data/large"})
    assert answer.json()["equal"] is True


def test_a_child_that_dies_is_told(server: Live) -> None:
    with post(server, "verify") as connection:
        os.kill(the_child(server), signal.SIGKILL)
        answer = b""
        while not answer.endswith(b"}") and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"the process of this question was killed by SIGKILL; ask again" in answer


def test_a_fingerprint_that_is_stopped_records_nothing(server: Live) -> None:
    record = next((server.log.parent / "data" / "large").rglob("slices.json"))
    before = record.read_bytes()
    connection = post(server, "fingerprint", overwrite=True)
    pid = freeze(server)
    connection.close()
    assert is_gone(pid, SECONDS)
    assert record.read_bytes() == before
    left = {p.name for p in record.parent.iterdir() if "partial" in p.name or p.name.endswith("~")}
    assert left == set()


def test_looks_are_not_held_up_by_reads(server: Live) -> None:
    connection = post(server, "verify")
    pid = freeze(server)
    with server.client() as client:
        look = client.post("/v1/checkpoints:inspect", json={"checkpoint": "data/large"})
        assert look.status_code == 200
        refused = client.post("/v1/checkpoints:verify", json={"checkpoint": "data/large"})
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.json()["detail"] == (
        "1 questions of this kind are being answered by the token 'ann', the most that one token may have at this server (its "
        "setting reads_per_token); ask again later"
    )
    connection.close()
    assert is_gone(pid, SECONDS)


def test_a_server_that_ends_stops_its_reads(tmp_path: Path, server: Live) -> None:
    shutil.copytree(server.log.parent / "data", tmp_path / "data", copy_function=os.link)
    with live(tmp_path, waits=WAITS) as ending, ThreadPoolExecutor(1) as threads:

        def ask() -> httpx.Response:
            with ending.client() as client:
                body = {"checkpoint": "data/large", "max_memory": "17MiB"}
                return client.post("/v1/checkpoints:verify", json=body, timeout=120)

        asking = threads.submit(ask)
        pid = freeze(ending)
        assert ending.end(120) == 0
        answer = asking.result()
        assert is_gone(pid, SECONDS)
    assert answer.status_code == 503
    assert "this server is ending" in answer.json()["detail"]


def test_a_look_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    monkeypatch.setattr(questions, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(questions, "TICK_SECONDS", 0.0)  # looked at before a child can have started
    reshard.save(tmp_path / "a", {"w": np.zeros(8)})
    with pytest.raises(ProblemError) as raised:
        asyncio.run(last(Question("inspect", {"path": str(tmp_path / "a")}, 4 * GIB), children))
    assert raised.value.kind.status == 503
    assert "there was no answer within 0 seconds" in raised.value.detail


def test_no_question_gets_more_memory_than_it_may(tmp_path: Path, children: Children) -> None:
    # A header that needs more than what a fork finds free in the memory that it shares with the template.
    save_file({f"tensor_{n}": np.zeros(1, np.uint8) for n in range(50_000)}, tmp_path / "a.safetensors")  # fmt: skip
    question = Question("inspect", {"path": str(tmp_path / "a.safetensors")}, 8 << 20)
    with pytest.raises(ProblemError) as raised:
        asyncio.run(last(question, children))
    assert raised.value.kind.slug == "worker-died"


def test_a_client_that_left_while_it_waited_costs_no_process(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[object]()
    monkeypatch.setattr(children, "start", started.append)
    looks = Slots(1, 1)

    async def scene() -> None:
        asked = Questions(RootNames(()), Drain(), looks, Slots(1, 1), children)
        async with aclosing(asked.ask(Question("inspect", {}, GIB), "ann")) as updates:
            assert await anext(updates) is None
            assert looks.taken == 1
        asked.close()

    asyncio.run(scene())
    assert (looks.taken, started) == (0, [])


def test_a_question_for_which_no_process_starts_is_refused_for_now(
    children: Children, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_more_descriptors() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", no_more_descriptors)
    with pytest.raises(ProblemError) as raised:
        asyncio.run(last(Question("inspect", {"path": "/x"}, 4 * GIB), children))
    assert (raised.value.kind.status, raised.value.headers["Retry-After"]) == (503, "5")
    assert raised.value.detail == (
        "no process could be started for this question; ask again later, and see the server's log"
    )
    assert "no process could be started for a question: [Errno 24] Too many open" in caplog.text


async def last(question: Question, children: Children) -> Answered:
    asked = Questions(RootNames(()), Drain(), Slots(1, 1), Slots(1, 1), children)
    try:
        return await _last(asked.ask, question)
    finally:
        asked.close()


async def _last(ask: Callable[..., object], question: Question) -> Answered:
    async for heard in ask(question, "ann"):
        if isinstance(heard, Answered):
            return heard
    raise AssertionError
