"""Children as forks of one process: each starts from the same state, and that process is replaced when it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.worker import children as starting
from reshard_server.worker.children import ChildProcess, Children, Message
from reshard_server.worker.template import _Forks

import reshard
from tests.server.jobs.world import is_gone, templates_of

STARTER = """
import json, sys, time
from reshard_server.worker.children import Children
child = Children().start(json.loads(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(300)
"""
OWN_DESCRIPTORS = 5
"""Of a template without children: stdin, stdout, stderr, and a pipe that wakes it."""
NEVER = {"question": "inspect", "arguments": {"path": "/dev/fd/nothing"}, "data_bytes": None}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("children") / "a"
    reshard.save(path, {"w": np.arange(8)})
    return path


@pytest.fixture
def own() -> Iterator[Children]:
    """Children of a template that the test may harm."""
    made = Children()
    yield made
    made.close()


def inspect(checkpoint: Path | str, **more: Any) -> Message:
    return {"question": "inspect", "arguments": {"path": str(checkpoint)}, "data_bytes": 4 << 30, **more}  # fmt: skip


def last_of(child: ChildProcess) -> Message:
    """The last message; the child has ended afterwards."""
    messages = list(child.listen_until(time.monotonic() + 300))
    code = child.close()
    assert code == 0, child.error_output()
    return messages[-1]


def stopped(children: Children) -> ChildProcess:
    """A child that cannot end on its own: it is stopped before it gets its document."""
    child = children.start({"question": "never"})
    os.kill(child.pid, signal.SIGSTOP)
    return child


def status_of(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def the_template(children: Children) -> int:
    assert children._template is not None
    return children._template.pid


def test_every_child_is_a_process_of_its_own_with_a_group_of_its_own(
    own: Children, checkpoint: Path
) -> None:
    pids = set[int]()
    for _ in range(3):
        child = own.start(inspect(checkpoint))
        assert os.getpgid(child.pid) == child.pid
        assert status_of(child.pid, "PPid") == the_template(own)
        pids.add(child.pid)
        assert last_of(child)["result"]["command"] == "inspect"
        assert is_gone(child.pid)
    assert len(pids) == 3


def test_a_template_keeps_nothing_of_a_request(own: Children, checkpoint: Path) -> None:
    """It has one thread, so that no lock is taken in a fork, and after children came and went it is what it was."""
    state = ("Threads", "VmData", "FDSize")
    last_of(own.start(inspect(checkpoint)))
    template = the_template(own)
    before = {name: status_of(template, name) for name in state}
    for _ in range(10):
        last_of(own.start(inspect(checkpoint)))
    assert {name: status_of(template, name) for name in state} == before
    assert before["Threads"] == 1
    deadline = time.monotonic() + 60
    while len(found := list(Path(f"/proc/{template}/fd").iterdir())) > OWN_DESCRIPTORS:
        assert time.monotonic() < deadline, found  # it hears of a closed pipe a little later
        time.sleep(0.01)


def test_a_child_has_the_environment_of_its_start(
    own: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the template's start, nor that of the child before; and no setting but the file for buckets."""
    asked = inspect("s3://bucket/a")
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "first.toml"))
    monkeypatch.setenv("RESHARD_DATABASE_URL", "postgresql://user:secret@host/db")
    assert "first.toml" in str(last_of(own.start(asked)))
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "second.toml"))
    refused = str(last_of(own.start(asked)))
    assert "second.toml" in refused
    assert "first.toml" not in refused
    assert b"secret" not in Path(f"/proc/{the_template(own)}/environ").read_bytes()


def test_a_template_that_is_killed_is_replaced(
    own: Children, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = stopped(own)
    first = the_template(own)
    os.kill(first, signal.SIGKILL)
    assert child.close() == -signal.SIGKILL
    assert is_gone(child.pid)
    assert last_of(own.start(inspect(checkpoint)))["result"]
    assert the_template(own) != first
    assert "the process that forks children was killed by SIGKILL" in caplog.text


def test_nothing_is_left_when_it_is_closed(own: Children) -> None:
    child = stopped(own)
    template = the_template(own)
    own.close()
    assert is_gone(template)
    assert is_gone(child.pid)
    assert child.close() == -signal.SIGKILL
    with pytest.raises(OSError, match="there is no process that could fork it; the log says why"):
        own.start({"question": "never"})


def test_nothing_is_left_when_the_server_is_killed() -> None:
    words = [sys.executable, "-c", STARTER, json.dumps(NEVER)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        child = int(server.stdout.readline())
        [template] = templates_of(server.pid)
        os.kill(template, signal.SIGSTOP)  # so that it cannot end itself
        server.kill()
    assert is_gone(template)
    assert is_gone(child)


def test_a_template_that_hangs_is_told(own: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(own).close()
    os.kill(the_template(own), signal.SIGSTOP)
    monkeypatch.setattr(starting, "START_SECONDS", 0.2)
    with pytest.raises(OSError, match="the process that should fork it did not answer in 0 s"):
        own.start({"question": "never"})


def test_a_template_that_cannot_fork_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_processes() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_more_processes)
    pipes = [os.pipe() for _ in range(4)]
    forks = _Forks.__new__(_Forks)
    assert forks._is_in_fork([write for _, write in pipes]) is False
    (_, out), (_, _), (errors, _), (news, _) = pipes
    with pytest.raises(OSError, match=r"^cannot fork: Resource temporarily unavailable$"):
        starting._pid_of(os.fdopen(news, "rb"), os.fdopen(errors, "rb"), time.monotonic() + 60)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(out)


def test_many_children_at_once(own: Children, checkpoint: Path) -> None:
    started = [own.start(inspect(checkpoint, niceness=0)) for _ in range(30)]
    assert {last_of(child)["result"]["command"] for child in started} == {"inspect"}
    assert templates_of(os.getpid()).count(the_template(own)) == 1
