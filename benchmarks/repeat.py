"""One call many times in one process: ``python -m benchmarks.repeat convert|restore SOURCE [--times 10] [--workers 1,2]``.

Prints the median of wall and processor time of each number of workers, which take turns. Under ``perf record -e
cpu-clock`` it shows where a call spends its time, start-up aside: what is spent in libpython holds the interpreter's
lock, so that 1 / its share is the number of threads beyond which more do not help. ``--processes`` runs the tasks of a
conversion in processes instead (then no processor time is printed).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import reshard

LAYOUT = {
    "mesh": {"axes": ["model"], "shape": [8]},
    "rules": [
        {"match": "embedding", "axes": ["model"]},
        {"match": "kernel", "axes": [None, "model"]},
    ],
}
"""The (8,) mesh of the other benchmarks: the embedding split by rows, everything else by columns."""


def converted(source: str, workers: int, *, processes: bool) -> None:
    """A conversion to a temporary folder below that of the source."""
    with tempfile.TemporaryDirectory(dir=Path(source).parent) as folder:
        context = multiprocessing.get_context("forkserver")
        pool = ProcessPoolExecutor(workers, mp_context=context) if processes else nullcontext()
        with pool as executor:
            target = Path(folder, "target")
            reshard.convert(source, target, layout=LAYOUT, workers=workers, executor=executor)


def restored(source: str, workers: int) -> None:
    """A restore onto the same mesh, of simulated devices."""
    from benchmarks.restoring.restore_once import layouts

    reshard.restore(source, layout=layouts(), workers=workers)


def measure(
    calls: dict[str, Callable[[], None]], times: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Wall and processor seconds of each call, in turn, after one that is not counted."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    for number in range(times + 1):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            if number:
                found[name][0].append(time.perf_counter() - wall)
                found[name][1].append(time.process_time() - cpu)
    return found


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repeat", description=__doc__)
    parser.add_argument("call", choices=("convert", "restore"))
    parser.add_argument("source")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--workers", default="1,2", help="numbers, separated by commas")
    parser.add_argument("--processes", action="store_true", help="for convert: not threads")
    given = parser.parse_args()
    calls: dict[str, Callable[[], None]] = {}
    for workers in map(int, given.workers.split(",")):
        name = f"{workers} {'processes' if given.processes else 'threads'}"
        if given.call == "restore":
            calls[name] = lambda workers=workers: restored(given.source, workers)
        else:
            calls[name] = lambda workers=workers: converted(
                given.source, workers, processes=given.processes
            )
    for name, (wall_s, cpu_s) in measure(calls, given.times).items():
        cpu = "" if given.processes else f", processor {statistics.median(cpu_s):.3f} s"
        print(f"{name}: wall {statistics.median(wall_s):.3f} s, least {min(wall_s):.3f} s{cpu}")


if __name__ == "__main__":
    main()
