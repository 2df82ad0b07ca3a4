"""Errors in tasks, callbacks and executors, and interrupts: the first is raised, the rest is cancelled, nothing leaks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.engine import task_stream
from reshard.engine.executor import run_tasks
from reshard.engine.movers import one_task
from reshard.engine.write import chunk_files
from reshard.errors import CorruptError, ReshardError, StorageError
from reshard.storage import target as target_place
from tests.orbax_trees import save_pytree
from tests.robustness.leaks import nothing_leaks
from tests.robustness.races.small_tasks import KEPT, convert


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    rng = np.random.default_rng(0)
    tree = {f"big{i}": rng.normal(size=(256, 512)).astype(np.float32) for i in range(4)}
    tree |= {f"small{i}": np.full((8, 8), i, np.float32) for i in range(20)}
    return save_pytree(tmp_path_factory.mktemp("saved") / "source", tree, use_ocdbt=False)


@pytest.fixture
def source(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)  # so that many are not handed out as one
    return shutil.copytree(saved, tmp_path / "source")


def chunks(source: Path) -> list[Path]:
    """The files of the source's chunks."""
    return [p for p in source.rglob("*") if p.is_file() and p.name[0].isdigit()]


def refused_writes(monkeypatch, after: int) -> None:
    write, left, lock = chunk_files.write_all, [after], threading.Lock()

    def refuse(fd, data, offset, path):
        with lock:
            left[0] -= 1
        if left[0] < 0:
            raise StorageError(f"cannot write {path!r}: refused")
        return write(fd, data, offset, path)

    for module in (chunk_files, target_place):  # pieces, and whole chunks
        monkeypatch.setattr(module, "write_all", refuse)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("after", [0, 7])
def test_a_failed_write_names_tensor_and_chunk(source, tmp_path, monkeypatch, compression, after):
    """In all threads at once, after the first has failed: one of them is told, and only once."""
    refused_writes(monkeypatch, after)
    with (
        nothing_leaks(tmp_path, KEPT),
        pytest.raises(
            StorageError,
            match=r"^tensor '(big|small)\d', chunk \[\d+(, \d+)*\]: cannot write '.*': refused$",
        ),
    ):
        convert(source, tmp_path / "target", compression=compression)
    assert not (tmp_path / "target").exists()


def test_a_chunk_that_is_damaged_is_named_once(source, tmp_path):
    for file in chunks(source):
        os.truncate(file, file.stat().st_size // 2)
    with nothing_leaks(tmp_path), pytest.raises(CorruptError) as caught:
        convert(source, tmp_path / "target")
    assert str(caught.value).count("tensor '") == 1
    assert not (tmp_path / "target").exists()


def test_a_defect_of_the_program_names_the_tensor_in_a_note(source, tmp_path, monkeypatch):
    def broken(*_):
        raise IndexError("no such thing")

    monkeypatch.setattr(one_task, "coverage", broken)
    monkeypatch.setattr(one_task, "move_whole", broken)
    with nothing_leaks(tmp_path), pytest.raises(IndexError, match="no such thing") as caught:
        convert(source, tmp_path / "target")
    (note,) = caught.value.__notes__
    assert note.startswith(("tensor 'big", "tensor 'small"))


class CallbackError(Exception):
    """An error of a caller's own code."""


@pytest.mark.parametrize("error", [CallbackError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 5])
def test_an_error_in_the_progress_callback(source, tmp_path, error, at):
    calls = []

    def progress(told):
        calls.append(told)
        if len(calls) == at:
            raise error("from outside")

    with nothing_leaks(tmp_path, KEPT), pytest.raises(error, match="from outside"):
        convert(source, tmp_path / "target", progress=progress)
    assert not (tmp_path / "target").exists()
    convert(source, tmp_path / "target")
    assert reshard.verify(source, tmp_path / "target").differences == 0


def test_the_keyboard_in_the_main_thread(source, tmp_path, monkeypatch):
    """A signal while the main thread waits for tasks: they end, and nothing is published."""
    write, main = chunk_files.write_all, threading.main_thread().ident
    until, lock = [10], threading.Lock()

    def interrupting(*args):
        with lock:
            until[0] -= 1
            is_now = until[0] == 0
        if is_now:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.005)
        return write(*args)

    for module in (chunk_files, target_place):  # pieces, and whole chunks
        monkeypatch.setattr(module, "write_all", interrupting)
    with nothing_leaks(tmp_path, KEPT), pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("how", [{"cancel_futures": True}, {"cancel_futures": False}], ids=str)
def test_an_executor_that_is_shut_down_midway(source, tmp_path, how):
    executor = ThreadPoolExecutor(2)
    with nothing_leaks(tmp_path, KEPT):
        with pytest.raises(ReshardError, match=r"^the executor ended before its tasks did \("):
            convert(
                source,
                tmp_path / "target",
                executor=executor,
                progress=lambda _: executor.shutdown(wait=False, **how),
            )
        executor.shutdown()
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_that_is_killed(source, tmp_path, method):
    """As the kernel does where memory runs out; the target is free again at once."""
    target = tmp_path / "target"
    command = [
        sys.executable,
        "-m",
        "tests.robustness.races.killed_workers",
        source,
        target,
        method,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "a worker may have been killed" in run.stdout
    assert reshard.verify(source, target).differences == 0


def test_a_generator_closed_early_waits_for_what_runs_and_cancels_the_rest():
    begun, ended = [], []

    def work(n):
        begun.append(n)
        time.sleep(0.02)
        ended.append(n)
        return n

    threads = set(threading.enumerate())
    results = run_tasks(range(1000), work, lambda _: 1, 1 << 20, 4)
    next(results)
    results.close()
    assert sorted(begun) == sorted(ended)
    assert len(begun) <= 4 * 2 + 4
    assert not set(threading.enumerate()) - threads  # one of an earlier test may end meanwhile


class Noted(ThreadPoolExecutor):
    """Keeps what it gave out."""

    def __init__(self, workers):
        super().__init__(workers)
        self.futures = []

    def submit(self, *arguments):
        self.futures.append(super().submit(*arguments))
        return self.futures[-1]


def test_the_first_of_several_errors_is_raised():
    """All fail; the one that failed first is raised, and none of the others is lost on the way out."""
    handed_out, has_failed = threading.Event(), threading.Event()

    def tasks():
        yield from range(4)
        # All are noted by now, so that this comes after whatever else is called when this one has failed.
        executor.futures[2].add_done_callback(lambda _: has_failed.set())
        handed_out.set()

    def work(n):
        assert handed_out.wait(60)
        assert n == 2 or has_failed.wait(60)
        raise StorageError(f"number {n}")

    with Noted(4) as executor, pytest.raises(StorageError) as caught:
        list(run_tasks(tasks(), work, lambda _: 1, 1 << 20, 4, executor))
    assert str(caught.value) == "number 2"
    assert caught.value.__context__ is None
