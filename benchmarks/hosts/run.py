"""Measures a conversion on a Ray cluster beside threads: ``python -m benchmarks.hosts.run SOURCE [--rounds 5]``.

Whole processes, which take turns, on one machine: the cluster has one node of all processors, and is up before. ``connected`` is
the conversion alone in a process that is connected already, beside one with threads in the same process.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.repeat import LAYOUT
from tests.executors.cluster import ray_cluster

LIMITS = ("--max-memory", "512MiB", "--workers", "2")


def main() -> None:
    """Prints the medians in seconds, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=Path(asked.source).parent) as folder,
        ray_cluster(1) as cluster,
    ):
        layout = Path(folder, "layout.json")
        layout.write_text(json.dumps(LAYOUT))
        target = Path(folder, "target")
        words = [asked.source, str(target), "--layout", str(layout), *LIMITS]
        _show("whole processes", _commands(words, target, cluster.address, asked.rounds))
        _show("connected", _connected(asked.source, target, cluster.address, asked.rounds))


def _commands(words: list[str], target: Path, address: str, rounds: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "reshard", "convert", *words]

    def run(*more: str) -> Callable[[], Any]:
        return lambda: subprocess.run([*command, *more], check=True, capture_output=True)

    return _in_turn({"threads": run(), "ray": run("--ray", address)}, target, rounds)


def _connected(source: str, target: Path, address: str, rounds: int) -> dict[str, list[float]]:
    import reshard
    from reshard.executors.ray import RayExecutor

    limits: dict[str, Any] = {"layout": LAYOUT, "max_memory": "512MiB", "workers": 2}
    with RayExecutor(address) as executor:
        calls = {
            "threads": lambda: reshard.convert(source, target, **limits),
            "ray": lambda: reshard.convert(source, target, **limits, executor=executor),
        }
        return _in_turn(calls, target, rounds)


def _in_turn(
    calls: dict[str, Callable[[], Any]], target: Path, rounds: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            began = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - began)
    return {name: times[1:] for name, times in found.items()}  # the first round warms the caches


def _show(what: str, found: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(times) for name, times in found.items()}
    shown = ", ".join(f"{name} {median:.2f} s" for name, median in medians.items())
    print(f"{what}: {shown}, ratio {medians['ray'] / medians['threads']:.2f}", flush=True)


if __name__ == "__main__":
    main()
