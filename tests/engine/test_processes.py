"""Processes: tasks run in interpreters of their own, which end with us, and get nothing of the caller's program."""

from __future__ import annotations

import functools
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from reshard.engine import executor
from reshard.engine.executor import Processes, own_processes, run_tasks
from reshard.errors import CorruptError, ReshardError
from tests.living import is_running
from tests.robustness.leaks import nothing_leaks


@pytest.fixture(scope="module")
def two():
    """Two processes of two threads each."""
    with own_processes(2, 4) as found:
        assert found is not None
        yield found


def test_tasks_run_in_both_and_each_is_another_interpreter(two):
    pids = {two.submit(os.getpid).result() for _ in range(8)}
    assert len(pids) == 2
    assert os.getpid() not in pids


def met(folder: Path, number: int, count: int) -> int:
    """Comes back once so many tasks run; its process."""
    (folder / str(number)).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline, sorted(folder.iterdir())
        time.sleep(0.01)
    return os.getpid()


def test_each_process_runs_several_at_once(two, tmp_path):
    futures = [two.submit(met, tmp_path, number, 4) for number in range(4)]
    assert sorted(Counter(future.result() for future in futures).values()) == [2, 2]


def test_what_it_runs_may_change_from_task_to_task(two):
    assert [two.submit(operator.add, n, 1).result() for n in range(9)] == list(range(1, 10))
    assert [two.submit(operator.mul, n, 2).result() for n in range(9)] == list(range(0, 18, 2))


def raised(error):
    raise error


def test_an_error_comes_back_as_it_was_raised(two):
    with pytest.raises(CorruptError, match=r"^the chunk is damaged$") as caught:
        two.submit(raised, CorruptError("the chunk is damaged")).result()
    assert not getattr(caught.value, "__notes__", [])


def test_a_defect_comes_back_with_its_traceback(two):
    with pytest.raises(ZeroDivisionError) as caught:
        two.submit(operator.truediv, 1, 0).result()
    (note,) = caught.value.__notes__
    assert note.startswith("in another process:\nTraceback")


def test_what_cannot_travel_is_an_error_and_no_hang(two):
    with pytest.raises(Exception, match="pickle"):
        two.submit(threading.Lock).result()
    with pytest.raises(Exception, match=r"pickle|local"):
        two.submit(lambda: 1).result()
    assert two.submit(int, "7").result() == 7


def test_signals_to_the_whole_group_reach_only_us(two):
    pids = {two.submit(os.getpid).result() for _ in range(8)}
    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert two.submit(functools.partial(int, "8")).result() == 8


def test_a_process_that_is_killed_is_an_error_that_names_it(tmp_path):
    with nothing_leaks(tmp_path), own_processes(2, 2) as both:
        os.kill(both.submit(os.getpid).result(), signal.SIGKILL)
        with pytest.raises(BrokenExecutor, match=r"^process \d+ was ended by signal 9$"):
            for future in [both.submit(int, "7") for _ in range(2)]:
                future.result()


def end_late() -> None:
    """As a process that is killed on a busy machine, or whose memory is dumped: its files close some time before it ends."""
    os.closerange(3, 1 << 10)
    time.sleep(1.5)
    os._exit(9)


def test_a_process_that_is_slow_to_end_is_named_by_its_end():
    with own_processes(1, 1) as one:
        ended = one.submit(end_late)
        with pytest.raises(BrokenExecutor, match=r"^process \d+ ended with code 9$"):
            ended.result()


def test_run_tasks_says_what_to_do_when_one_is_killed(tmp_path):
    with (
        nothing_leaks(tmp_path),
        own_processes(1, 1) as one,
        pytest.raises(
            ReshardError,
            match=r"ended before its tasks did \(process \d+ ended with code 9\); a worker may have been killed",
        ),
    ):
        list(run_tasks([9, 9, 9], os._exit, lambda _: 1, 5, 1, one))


@pytest.mark.parametrize("text", ["exit 3", "cat >/dev/null"], ids=["ends", "never answers"])
def test_no_processes_where_none_can_be_started(tmp_path, monkeypatch, text):
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(executor, "START_SECONDS", 0.5)
    with nothing_leaks(tmp_path):
        assert Processes.started(2, 2) is None


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi", "/nowhere/python3"])
def test_no_processes_where_the_program_is_no_interpreter(tmp_path, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with nothing_leaks(tmp_path):
        assert Processes.started(2, 2) is None


PARENT = """
    import os, sys, time
    from reshard.engine.executor import own_processes
    with own_processes(2, 4) as found:
        print(*{found.submit(os.getpid).result() for _ in range(8)}, flush=True)
        waiting = [found.submit(time.sleep, 60) for _ in range(4)]
        if sys.argv[1:] and os.fork() == 0:  # holds all that is open, and ends later
            time.sleep(60)
        time.sleep(60)
"""


@pytest.mark.parametrize("words", [(), ("fork",)], ids=["alone", "with a fork"])
def test_they_end_with_a_parent_that_is_killed(words):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), *words],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        parent.wait(60)
        deadline = time.monotonic() + 60
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, pids
            time.sleep(0.05)
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if words else None
        parent.communicate()
