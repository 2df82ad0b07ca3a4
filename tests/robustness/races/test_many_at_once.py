"""Many conversions at once, in one process and in several, and two that want one target."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local.staging import staged, staging_for
from tests.orbax_trees import save_pytree
from tests.robustness.leaks import nothing_leaks
from tests.robustness.races.small_tasks import convert_number, in_process


def saved(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    tree = {f"w{i}": rng.normal(size=(64 * (i + 1), 80)).astype(np.float32) for i in range(5)}
    return save_pytree(path, tree)


@pytest.mark.parametrize("same_source", [True, False])
def test_eight_threads_with_a_target_each(same_source, tmp_path):
    sources = [saved(tmp_path / f"source{i}", 0 if same_source else i) for i in range(8)]
    sources = sources[:1] * 8 if same_source else sources
    with nothing_leaks(tmp_path), ThreadPoolExecutor(8) as pool:
        targets = [tmp_path / f"target{i}" for i in range(8)]
        digests = list(pool.map(convert_number, sources, targets, range(8)))
    for source, target in zip(sources, targets, strict=True):
        assert reshard.verify(source, target).differences == 0
    assert same_source == all(d == digests[0] for d in digests)


def in_processes(jobs: list[tuple[Path, Path, int]]) -> list[str]:
    context = get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=in_process, args=(*job, queue)) for job in jobs]
    for process in processes:
        process.start()
    told = [queue.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return sorted(told)


def test_several_processes_with_a_target_each(tmp_path):
    source = saved(tmp_path / "source", 0)
    with nothing_leaks(tmp_path):
        told = in_processes([(source, tmp_path / f"target{i}", i) for i in range(3)])
    assert told == ["done"] * 3
    assert all(reshard.verify(source, tmp_path / f"target{i}").differences == 0 for i in range(3))


def test_several_processes_with_one_target(tmp_path):
    """Exactly one writes it; who comes meanwhile is told who holds it, who comes later that it is there."""
    source, target = saved(tmp_path / "source", 0), tmp_path / "target"
    with nothing_leaks(tmp_path):
        told = in_processes([(source, target, i) for i in range(3)])
    assert told.count("done") == 1
    for refusal in [t for t in told if t != "done"]:
        assert refusal.startswith(("TargetBusyError: another run (process ", "TargetExistsError: "))
    assert reshard.verify(source, target).differences == 0


def test_threads_of_one_process_with_one_target(tmp_path):
    source, target = saved(tmp_path / "source", 0), tmp_path / "target"
    gate, told = threading.Barrier(8), []

    def one(number: int) -> None:
        gate.wait(60)
        try:
            convert_number(source, target, number)
            told.append("done")
        except StorageError as error:
            told.append(type(error).__name__)
            assert f"process {os.getpid()}" in str(error) or isinstance(error, TargetExistsError)

    with nothing_leaks(tmp_path), ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert told.count("done") == 1
    assert reshard.verify(source, target).differences == 0


def descriptor_of(path: Path, process: int | str = "self") -> int:
    """By which number a process has a file open."""
    opened = Path(f"/proc/{process}/fd").iterdir()
    return next(int(fd.name) for fd in opened if os.path.realpath(fd) == str(path))


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    """It inherits the descriptor, and with it a part in the lock, which it outlives the run with."""
    target = tmp_path / "target"
    with ExitStack() as ends:
        with staged(target) as staging:
            lock = staging.folder / "lock"
            child = subprocess.Popen(["sleep", "600"], pass_fds=[descriptor_of(lock)])
            ends.callback(child.wait)
            ends.callback(child.kill)
            assert descriptor_of(lock, child.pid) > 2
            held_by_us = os.open(lock, os.O_RDWR)
            ends.callback(os.close, held_by_us)
        fcntl.flock(held_by_us, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with staged(target):
            pass
    assert not staging_for(target).folder.exists()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_from_conversion_to_conversion(tmp_path):
    """Over 50 of them; the first ones fill caches that are bounded."""
    source = saved(tmp_path / "source", 0)
    sizes = []
    with nothing_leaks(tmp_path):
        for number in range(50):
            target = tmp_path / f"target{number}"
            convert_number(source, target, number)
            sizes.append(resident_bytes())
    assert sizes[-1] - sizes[14] < 24 << 20, [size >> 20 for size in sizes]
