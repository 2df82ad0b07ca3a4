"""How long real tasks take: measured once, and kept here for simulations of many hosts.

``python -m benchmarks.trees.make_tree --size 0.7 SOURCE``, then ``python -m benchmarks.hosts.task_times SOURCE TARGET`` converts
from zstd to uncompressed chunks, one task at a time as a worker on another host would do it, and prints the three constants.
TARGET is removed first. The constants are medians of five runs on two cores (AMD EPYC) of a shared virtual machine, with
822 MB in 28 tasks, the page cache warm, and nothing synced.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from reshard.engine.task import Task
from reshard.geometry.dtypes import storage_bytes

BYTES_PER_S = 593e6
"""Decoded bytes of the source that a worker moves in a second (runs: 293 to 617 MB/s)."""

SECONDS_PER_TASK = 0.0035
"""What a task takes besides its bytes."""

SPREAD = 0.10
"""Standard deviation of the logarithm of the times of tasks of one size. One machine has no
slow hosts and no network."""

Measured = tuple[int, float]
"""Decoded bytes and seconds of a task."""


def seconds(nbytes: int, chance: random.Random) -> float:
    """A time for a task that decodes so many bytes, with the measured mean and spread."""
    mean = SECONDS_PER_TASK + nbytes / BYTES_PER_S
    return mean * chance.lognormvariate(-(SPREAD**2) / 2, SPREAD)


def decoded_bytes(task: Task) -> int:
    """Bytes of the source chunks that a task reads."""
    return sum(
        math.prod(chunk.stored_shape) * storage_bytes(read.dtype)
        for read in task.reads
        for chunk in read.chunks
    )


def fit(times: list[Measured]) -> tuple[float, float, float]:
    """Bytes per second, seconds per task and spread that describe these times best."""
    slope, fixed_s = statistics.linear_regression(*zip(*times, strict=True))
    unlike = [math.log(took_s / (fixed_s + slope * nbytes)) for nbytes, took_s in times]
    return 1 / slope, fixed_s, statistics.stdev(unlike)


class Timed(Executor):
    """Does each batch at once, a task at a time, and notes what each task took."""

    def __init__(self) -> None:
        self.times: list[Measured] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        (batch,) = arguments
        future: Future[Any] = Future()
        began = time.perf_counter()
        future.set_result(work(batch))
        each_s = (time.perf_counter() - began) / len(batch)
        self.times += [(decoded_bytes(task), each_s) for task in batch]
        return future


def measure(source: Path, target: Path) -> list[Measured]:
    """Converts to columns; the bytes and the seconds of each task."""
    import reshard

    layout = {
        "mesh": {"axes": ["m"], "shape": [8]},
        "rules": [{"match": "kernel", "axes": [None, "m"]}, {"match": "embed", "axes": ["m"]}],
    }
    shutil.rmtree(target, ignore_errors=True)
    with Timed() as executor:
        reshard.convert(source, target, layout=layout, executor=executor)
    return executor.times


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    asked = parser.parse_args()
    rate, fixed_s, spread = fit(measure(asked.source, asked.target))
    print(f"BYTES_PER_S = {rate:.3g}, SECONDS_PER_TASK = {fixed_s:.2g}, SPREAD = {spread:.2g}")


if __name__ == "__main__":
    main()
