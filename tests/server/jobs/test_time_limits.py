"""Time limits: a conversion that runs too long, or makes no progress, is ended, even if its process hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reshard_server.db.conversions import conversions
from reshard_server.jobs.attempt import TimeLimits
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
    ProgressState,
)
from reshard_server.settings import Settings
from reshard_server.worker import children
from reshard_server.worker.children import ChildProcess

from tests.server.jobs.world import World, is_gone

SHORT_GRACE = {"reshard_server.jobs.attempt.GRACE_SECONDS": 1}


class Times:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(moved_bytes: int, stage: str = "copying", tasks_done: int = 0) -> ProgressState:
    return ProgressState(
        stage=stage,
        moved_bytes=moved_bytes,
        total_bytes=100,
        tasks_done=tasks_done,
        tasks=9,
        tensor="w",
    )


def limits(clock: Times, folder: Path, request: dict[str, Any], **settings: Any) -> TimeLimits:
    wish = OneTarget.model_validate({"source": "data/a", "target": "data/b", **request})
    return TimeLimits(Settings(state=folder, **settings), wish, clock)


def detail(found: TimeLimits) -> str:
    problem = found.problem()
    assert problem is not None
    return problem.detail


def test_only_what_moves_is_progress(tmp_path: Path) -> None:
    clock = Times()
    found = limits(clock, tmp_path, {}, no_progress_seconds=10)
    for at in (
        progress(0),
        progress(1),
        progress(1, tasks_done=1),
        progress(1, "reading back", 1),
        progress(1, "syncing", 1),
    ):
        clock.now += 9
        found.see(at)
        assert found.problem() is None
    clock.now += 9
    found.see(progress(1, "syncing", 1))
    clock.now += 2
    assert detail(found) == (
        "it moved nothing for 11 s, longer than the 10 s that it may (the server's setting no_progress_seconds is 10), "
        "syncing, with 1 of 100 bytes moved, at the tensor 'w'; look whether the storage hangs, and retry the "
        "conversion to resume it"
    )


def test_what_moves_may_run_for_long_unless_that_is_limited(tmp_path: Path) -> None:
    clock = Times()
    free = limits(clock, tmp_path, {}, no_progress_seconds=10)
    bounded = limits(clock, tmp_path, {}, run_seconds=60, no_progress_seconds=10)
    for at in range(10):
        clock.now += 7
        free.see(progress(at))
        bounded.see(progress(at))
    assert free.problem() is None
    assert detail(bounded) == (
        "it ran for 70 s, longer than the 60 s that it may (the server's setting run_seconds is 60), copying, with 9 of "
        "100 bytes moved, at the tensor 'w'; retry the conversion to resume it, or have the limit raised"
    )


@pytest.mark.parametrize(
    ("asked", "setting", "words"),
    [
        (5.0, 60, "(run_seconds of the request is 5, the server's setting run_seconds is 60)"),
        (5.0, 0, "(run_seconds of the request is 5, the server has none)"),
        (90.0, 5, "(run_seconds of the request is 90, the server's setting run_seconds is 5)"),
    ],
)
def test_the_lower_limit_holds(asked: float, setting: float, words: str, tmp_path: Path) -> None:
    clock = Times()
    found = limits(clock, tmp_path, {"run_seconds": asked}, run_seconds=setting)
    clock.now += 4
    assert found.problem() is None
    clock.now += 2
    assert f"it ran for 6 s, longer than the 5 s that it may {words}, before any" in detail(found)


def test_without_limits_nothing_is_over(tmp_path: Path) -> None:
    clock = Times()
    found = limits(clock, tmp_path, {}, run_seconds=0, no_progress_seconds=0)
    clock.now += 1e9
    assert found.problem() is None


def _failed(found: Conversion, kind: str) -> str:
    assert (found.state, found.attempts) == ("failed", 1)
    assert found.error is not None
    assert found.error["type"] == f"urn:reshard:problem:{kind}"
    return str(found.error["detail"])


def test_a_hanging_process_is_ended_and_a_retry_goes_on(world: World) -> None:
    server = world.start(no_progress_seconds=5, waits=SHORT_GRACE)
    job = world.held()
    [child] = server.children()
    os.kill(child, signal.SIGSTOP)  # it hangs: not even SIGTERM ends it
    found = world.ended(job)
    words = _failed(found, "no-progress")
    assert (
        "longer than the 5 s that it may (the server's setting no_progress_seconds is 5)" in words
    )
    assert words.endswith("retry the conversion to resume it")
    assert found.error is not None and found.error["progress"]["moved_bytes"] > 0
    assert is_gone(child)
    assert server.end() == 0

    world.start()
    conversions.requeue(world.db, job)
    world.resumed(job)


def test_a_conversion_that_runs_too_long_is_ended(world: World) -> None:
    server = world.start(waits=SHORT_GRACE)
    job = world.held(run_seconds=5.0)  # of which its start may take some
    [child] = server.children()
    os.kill(child, signal.SIGSTOP)
    words = _failed(world.ended(job), "run-time-limit")
    assert "longer than the 5 s that it may (run_seconds of the request is 5" in words
    assert is_gone(child)
    world.let_go()
    other = world.convert("other")
    assert world.ended(other).state == "succeeded"  # its place is free


def test_a_process_that_the_kernel_cannot_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sleeping = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    assert sleeping.stdin and sleeping.stdout and sleeping.stderr
    never, writes = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(children, "EXIT_SECONDS", 0.1)
        patch.setattr(
            os, "killpg", lambda *_: None
        )  # the signal waits for the end of a system call
        child = ChildProcess(
            sleeping.pid, sleeping.stdin, sleeping.stdout, sleeping.stderr, os.fdopen(never, "rb")
        )
        assert child.close() == -signal.SIGKILL
    assert f"the process {sleeping.pid} hangs in the kernel; it ends later" in caplog.text
    os.close(writes)
    os.killpg(sleeping.pid, signal.SIGKILL)
    assert is_gone(sleeping.pid)
    sleeping.wait(60)
