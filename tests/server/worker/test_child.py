"""The child alone: its messages, and that it never outlives its parent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from reshard_server.worker.children import ChildProcess, Children, Message, _has_room, how_ended

import reshard
from tests.server.jobs.world import is_gone
from tests.server.waiting import until

STARTER = """
import json, sys, time
from reshard_server.worker.children import Children
child = Children().start(json.loads(sys.argv[1]))
print(child.pid, flush=True)
for message in child.listen_until(time.monotonic() + 300):
    print("said", flush=True)
"""


SLOW = {"compression": "gzip:7", "chunk_bytes": "512KiB"}
"""Options that slow each tensor to about a second. The child reports progress once a second."""


def request(source: Path, target: Path, **options: Any) -> Message:
    return {
        "source": str(source),
        "unlisted": "leave",
        "targets": [{"target": str(target), **options}],
        "max_memory": 1 << 28,
        "workers": 1,
        "max_growth": 16.0,
        "begun": False,
        "niceness": 0,
        "data_bytes": 4 << 30,
    }


def heard(child: ChildProcess) -> list[Message]:
    return list(child.listen_until(time.monotonic() + 500))


def await_move(child: ChildProcess) -> None:
    """Listens until two tensors have moved, of which the first is surely recorded."""
    while not any(m["progress"]["moved_bytes"] >= 8 << 20 for m in child.messages(1)):
        assert not child.ended


def test_it_tells_progress_and_the_result(
    slow_source: Path, tmp_path: Path, children: Children
) -> None:
    child = children.start(request(slow_source, tmp_path / "out"))
    *told, last = heard(child)
    assert child.close() == 0
    [report] = last["result"]["reports"]
    assert last["result"]["read_bytes"] == report["read_bytes"] > 0
    assert report["target"] == str(tmp_path / "out")
    moved = [m["progress"]["moved_bytes"] for m in told]
    assert len(moved) > 1
    assert moved == sorted(moved)
    assert told[-1]["progress"]["stage"] == "syncing"
    assert not reshard.verify(slow_source, tmp_path / "out").differences


def test_a_refusal_is_a_problem(small_source: Path, tmp_path: Path, children: Children) -> None:
    child = children.start(request(small_source, tmp_path / "out", compression="lzma"))
    [message] = heard(child)
    assert child.close() == 0
    assert message["problem"]["status"] == 422
    assert "lzma" in message["problem"]["detail"]


def test_a_refusal_names_its_field(small_source: Path, tmp_path: Path, children: Children) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    child = children.start(request(small_source, tmp_path / "out") | {"several": False})
    [message] = heard(child)
    assert child.close() == 0
    assert message["problem"]["field"] == "/target"
    assert message["problem"]["error"] == "TargetExistsError"


def test_sigterm_stops_it_and_keeps_what_is_done(
    slow_source: Path, tmp_path: Path, children: Children
) -> None:
    child = children.start(request(slow_source, tmp_path / "out", **SLOW))
    await_move(child)
    child.terminate()
    assert not any("result" in m for m in heard(child))
    assert child.close() == 143
    assert (tmp_path / ".out.reshard-partial" / "journal").exists()


def test_it_dies_when_its_stdin_closes(
    slow_source: Path, tmp_path: Path, children: Children
) -> None:
    child = children.start(request(slow_source, tmp_path / "out", **SLOW))
    await_move(child)
    child.stdin.close()
    assert not any("result" in m for m in heard(child))
    assert child.close() == 86


def test_the_kernel_ends_it_with_its_parent(slow_source: Path, tmp_path: Path) -> None:
    """Even if the child does not see the end of stdin, because another process keeps the pipe open."""
    document = json.dumps(request(slow_source, tmp_path / "out", **SLOW))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, document], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout
    pid = int(starter.stdout.readline())
    assert starter.stdout.readline() == "said\n"
    holder = os.open(f"/proc/{starter.pid}/fd/{_pipe_to(starter.pid, pid)}", os.O_WRONLY)
    starter.kill()
    starter.wait(60)
    starter.stdout.close()
    assert is_gone(pid, 60)
    os.close(holder)
    assert not (tmp_path / "out").exists()


def _pipe_to(parent: int, child: int) -> str:
    """The parent's descriptor of the pipe that is the child's stdin."""
    pipe = Path(f"/proc/{child}/fd/0").readlink()
    folder = Path(f"/proc/{parent}/fd")
    return next(fd.name for fd in folder.iterdir() if fd.readlink() == pipe)


def test_a_child_of_nobody_does_nothing(small_source: Path, tmp_path: Path) -> None:
    """Its parent died before the child could ask the kernel for a signal at the parent's death."""
    not_the_parent = str(os.getppid())
    done = subprocess.run(
        [sys.executable, "-m", "reshard_server.worker.template", not_the_parent],
        input=json.dumps(request(small_source, tmp_path / "out")).encode() + b"\n",
        check=False,
        timeout=120,
    )
    assert done.returncode == 86
    assert not (tmp_path / "out").exists()


def test_a_reader_that_does_not_read_holds_nothing_up(
    slow_source: Path, tmp_path: Path, children: Children
) -> None:
    """A frozen server must not keep the target locked: only the result waits for it."""
    child = children.start(request(slow_source, tmp_path / "out"))
    os.set_blocking(child.stdout.fileno(), False)
    until(lambda: (tmp_path / "out").exists())
    assert "result" in heard(child)[-1]
    assert child.close() == 0


def test_memory_that_runs_away_is_bounded(
    small_source: Path, tmp_path: Path, children: Children
) -> None:
    child = children.start(request(small_source, tmp_path / "out") | {"data_bytes": 80 << 20})
    messages = heard(child)
    assert not any("result" in m for m in messages)
    # Where a task or a thread is refused memory, that is an error like any other, which names it; elsewhere the process ends.
    assert child.close() != 0 or "refused memory" in str(messages) or "perhaps for its memory" in str(messages)  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "ended with status 1"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGABRT, "was killed by SIGABRT"),
        (-60, "was killed by signal 60"),
    ],
)
def test_ends_are_named(code: int, words: str) -> None:
    assert how_ended(code) == words


def test_a_pipe_with_a_high_number_is_asked_for_room() -> None:
    """A busy server has more than 1,024 descriptors."""
    out, into = os.pipe()
    high = fcntl.fcntl(into, fcntl.F_DUPFD, 1500)
    try:
        assert _has_room(high)
        os.set_blocking(high, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(high, bytes(1 << 16))
        assert not _has_room(high)
    finally:
        for fd in (out, into, high):
            os.close(fd)
