"""Deltas beside ``cp`` and a program of its own: ``python -m benchmarks.deltas.run [--mib 1024] [--percent 0.3,1,3,100] [--rounds 3]``.

Two versions of bfloat16 weights, of which so many of a hundred elements differ. Each contender is a fresh process, in turn, each round
beginning with another, timed until its output is on the disk. ``xor`` reads both versions and compresses their XOR, no more. What is changed in
place is copied before.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.conversion.rounds import REPOSITORY
from benchmarks.handover.run import run_rounds, table
from benchmarks.measure import tree_bytes

BY_HAND = [sys.executable, "-m", "benchmarks.peers.delta_by_hand"]
RESHARD = str(Path(sys.executable).parent / "reshard")
VERSION = "weight_v000001"
IN_PLACE = "reshard in place"


def contenders(work: Path, budget: str) -> dict[str, list[str]]:
    """The commands, each without its target, which is the last word."""
    old, new = str(work / "old"), str(work / "new")
    memory = ["--max-memory", budget]
    return {
        "cp": ["cp", "-r", new],
        "delta: script": [*BY_HAND, "delta", old, new],
        "delta: xor": [*BY_HAND, "xor", old, new],
        f"delta: reshard, {budget}": [RESHARD, "delta", *memory, old, new],
        "apply: script": [*BY_HAND, "apply", old, str(work / "by_hand")],
        f"apply: reshard, {budget}": [RESHARD, "apply", "--quiet", *memory, old, str(work / VERSION)],
        f"apply: {IN_PLACE}, {budget}": ["sh", "-c", f'exec {RESHARD} apply --quiet --in-place --max-memory {budget} "$1" {work / VERSION}', "sh"],
    }  # fmt: skip


def prepare(work: Path, mib: int, percent: str) -> None:
    """Two versions, and what the program and reshard make of them, for those who apply it."""
    for words in (
        [*BY_HAND, "make", str(work), str(mib), percent],
        [*BY_HAND, "delta", str(work / "old"), str(work / "new"), str(work / "by_hand")],
        [RESHARD, "delta", str(work / "old"), str(work / "new"), str(work / VERSION)],
    ):
        subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)


def main() -> None:
    """Parse the command line, measure, print a table for each rate of change."""
    parser = argparse.ArgumentParser(description="Measure deltas of weights.")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--percent", default="0.3,1,3,100", help="of the elements that differ")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="256MiB", help="of memory")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    for percent in given.percent.split(","):
        work = Path(tempfile.mkdtemp(prefix="deltas-", dir=given.work))
        try:
            prepare(work, given.mib, percent)
            sizes = [tree_bytes(work / name) for name in ("new", "by_hand", VERSION)]
            print(f"\n{percent} % of the elements: a version has {sizes[0]:,} bytes, the delta {sizes[1]:,} by hand and {sizes[2]:,} by reshard\n")  # fmt: skip
            commands = contenders(work, given.budget)
            copies = {name: work / "old" for name in commands if IN_PLACE in name}
            costs = run_rounds(commands, given.rounds, work, sizes[0], "weight_v000002", copies)
            print(table(costs), flush=True)
        finally:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
