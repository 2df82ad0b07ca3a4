"""Measures a conversion in parts beside threads: ``python -m benchmarks.hosts.run SOURCE [--parts 2,4,8] [--at-once 2] [--rounds 3]``.

Each part is a process, ``reshard convert … --part i/n``; ``--at-once`` of them run at the same time, each with its share of memory and workers.
``reshard commit`` follows. All ways take turns, on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.repeat import LAYOUT

WORKERS, MEMORY_MIB = 2, 512
"""Of all processes that run at the same time."""


def main() -> None:
    """Prints the medians in seconds, and their ratios to threads of one process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--parts", default="2,4,8")
    for name, number in (("--at-once", 2), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=number)
    asked = parser.parse_args()
    times: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=asked.source.parent) as folder:
        layout, target = Path(folder, "layout.json"), Path(folder, "target")
        layout.write_text(json.dumps(LAYOUT))
        words = ["convert", str(asked.source), str(target), "--layout", str(layout)]
        for _ in range(asked.rounds + 1):
            for count in (0, *map(int, asked.parts.split(","))):
                shutil.rmtree(target, ignore_errors=True)
                os.sync()
                times[count].append(measure(words, target, count, asked.at_once))
    threads_s = statistics.median(moved_s for moved_s, _ in times[0][1:])
    for count, found in times.items():  # the first round warmed the caches
        moved_s, commit_s = map(statistics.median, zip(*found[1:], strict=True))
        said = f"{moved_s:.2f} s, commit {commit_s:.2f} s, ratio {(moved_s + commit_s) / threads_s:.2f}"
        print(f"{count} parts: {said}" if count else f"threads: {said}")


def measure(words: list[str], target: Path, count: int, at_once: int) -> tuple[float, float]:
    """Seconds of a conversion in so many parts, and of its commit; 0 parts are threads of one process, without a commit."""
    began, at_once = time.perf_counter(), max(1, min(at_once, count))
    share = ("--max-memory", f"{MEMORY_MIB // at_once}MiB", "--workers", f"{max(1, WORKERS // at_once)}")  # fmt: skip
    if not count:
        run([*words, *share])
        return time.perf_counter() - began, 0.0
    with ProcessPoolExecutor(at_once) as pool:
        parts = [[*words, *share, "--part", f"{n}/{count}"] for n in range(1, count + 1)]
        list(pool.map(run, parts))
    moved = time.perf_counter()
    run(["commit", str(target)])
    return moved - began, time.perf_counter() - moved


def run(words: list[str]) -> None:
    """Runs a command of reshard; CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "reshard", *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
