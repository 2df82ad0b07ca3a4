"""One run to two targets beside two runs: ``python -m benchmarks.conversion.several_targets SOURCE FOLDER``.

Rounds alternate; each conversion is a process of its own, so that what it read, wrote and computed is what
the kernel counts of it. The targets are the columns of the source as they are, and its rows as bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ONE_RUN = """
import json, sys
from reshard import Target, convert_all
source, targets, memory = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
made = convert_all(source, [Target(**target) for target in targets], max_memory=memory)
print(made.read_bytes)
"""

MESH = {"axes": ["m"], "shape": [8]}


def targets(folder: Path) -> list[dict[str, object]]:
    """The two targets, below ``folder``."""
    columns = {"mesh": MESH, "rules": [{"match": "kernel|embed", "axes": [None, "m"]}]}
    rows = {"mesh": MESH, "rules": [{"match": "kernel|embed", "axes": ["m"]}]}
    return [
        {"target": str(folder / "columns"), "layout": columns},
        {"target": str(folder / "half"), "layout": rows, "cast": {".": "bfloat16"}},
    ]


def timed(
    source: Path, runs: list[list[dict[str, object]]], memory: str
) -> tuple[float, float, int]:
    """Wall and processor seconds, and encoded bytes read, of runs one after the other."""
    began, read, cpu = time.monotonic(), 0, _child_seconds()
    for targets_of_run in runs:
        command = [sys.executable, "-c", ONE_RUN, str(source), json.dumps(targets_of_run), memory]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        read += int(done.stdout)
    return time.monotonic() - began, _child_seconds() - cpu, read


def _child_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Prints medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument(
        "folder", type=Path, help="where targets are made; it is emptied after each run"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-memory", default="512MiB")
    asked = parser.parse_args()
    both = targets(asked.folder)
    ways = {"one run": [both], "two runs": [[target] for target in both]}
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
        for name, runs in ways.items():
            asked.folder.mkdir(parents=True, exist_ok=True)
            found[name].append(timed(asked.source, runs, asked.max_memory))
            shutil.rmtree(asked.folder)
            print(name, *found[name][-1], flush=True)
    medians = {
        n: [statistics.median(column) for column in zip(*f, strict=True)] for n, f in found.items()
    }
    for name, median in medians.items():
        print(
            f"{name}: {median[0]:.2f} s, {median[1]:.2f} s of processor, {median[2]:,} bytes read"
        )
    ratios = [a / b for a, b in zip(medians["one run"], medians["two runs"], strict=True)]
    print("one run / two runs: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
