"""Deltas beside ``cp`` and a program of its own: ``python -m benchmarks.deltas.run [--mib 1024] [--percent 0.3,1,3,100] [--rounds 3]``.

Two versions of bfloat16 weights, of which so many of a hundred elements differ. Each contender is a fresh process, in turn, each round
beginning with another, timed until its output is on the disk. ``xor`` reads both versions and compresses their XOR, no more; ``fold`` reads base
and delta, and XORs, sums up and writes, no more.

With ``--memory`` only reshard runs, once: ``python -m benchmarks.deltas.run --memory --mib 3072 --percent 1``. It ends with 1 where a peak
is more than 128 MiB above the budget.
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
from benchmarks.measure import MIB, Cost, tree_bytes

BY_HAND = [sys.executable, "-m", "benchmarks.peers.delta_by_hand"]
RESHARD = str(Path(sys.executable).parent / "reshard")
TARGET = "weight_v000002"
VERSION = f"published/{TARGET}"
BESIDE_MIB = 128
"""Of memory that a run may take beside its budget."""


def contenders(work: Path, budget: str) -> dict[str, list[str]]:
    """The commands, each without its target, which is the last word."""
    old, new = str(work / "old"), str(work / "new")
    ours = of_reshard(work, budget)
    return {
        "cp": ["cp", "-r", new],
        "delta: script": [*BY_HAND, "delta", old, new],
        "delta: xor": [*BY_HAND, "xor", old, new],
        f"delta: reshard, {budget}": ours["delta"],
        "apply: script": [*BY_HAND, "apply", old, str(work / "by_hand")],
        "apply: fold": [*BY_HAND, "fold", old, str(work / "by_hand")],
        f"apply: reshard, {budget}": ours["apply"],
    }


def of_reshard(work: Path, budget: str) -> dict[str, list[str]]:
    """The commands that are measured, as ``contenders``."""
    old, new = str(work / "old"), str(work / "new")
    memory = ["--max-memory", budget]
    return {
        "delta": [RESHARD, "delta", *memory, old, new],
        "apply": [RESHARD, "apply", "--quiet", *memory, old, str(work / VERSION)],
    }


def prepare(work: Path, mib: int, percent: str) -> None:
    """Two versions, and what reshard makes of them, for those who apply it."""
    do([*BY_HAND, "make", str(work), str(mib), percent])
    do([RESHARD, "delta", str(work / "old"), str(work / "new"), str(work / VERSION)])


def do(words: list[str]) -> None:
    """Runs a command that is not measured."""
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)


def measure(given: argparse.Namespace, percent: str, work: Path) -> bool:
    """A table of all contenders."""
    do([*BY_HAND, "delta", str(work / "old"), str(work / "new"), str(work / "by_hand")])
    sizes = [tree_bytes(work / name) for name in ("new", "by_hand", VERSION)]
    changed = sizes[0] / 2 * float(percent) / 100
    print(
        f"\n{percent} % of the elements: a version has {sizes[0]:,} bytes, the delta {sizes[1]:,} by hand and {sizes[2]:,} by reshard, "
        f"{sizes[2] / changed:.2f} for each element that changed\n"
    )
    commands = contenders(work, given.budget)
    costs = run_rounds(commands, given.rounds, work, sizes[0], dict.fromkeys(commands, TARGET))
    print(table(costs), flush=True)
    return True


def measure_memory(given: argparse.Namespace, percent: str, work: Path) -> bool:
    """A table of reshard's peaks; whether each is within the budget and what is allowed beside it."""
    nbytes = tree_bytes(work / "new")
    # Seconds are not compared here, so that no free memory has to be touched before.
    commands = of_reshard(work, given.budget)
    costs = run_rounds(commands, 1, work, 0, dict.fromkeys(commands, TARGET))
    allowed = allowed_mib(given.budget)
    print(f"\n{percent} % of the elements of {nbytes:,} bytes, a budget of {given.budget}\n")
    print("| | peak MiB | allowed MiB |\n| --- | ---: | ---: |")
    peaks = {name: peak(found) for name, found in costs.items()}
    for name, mib in peaks.items():
        print(f"| {name} | {mib:.0f} | {allowed:.0f} |", flush=True)
    return all(mib <= allowed for mib in peaks.values())


def peak(costs: list[Cost]) -> float:
    """The largest resident memory of some runs."""
    return max(cost.peak_mib for cost in costs)


def allowed_mib(budget: str) -> float:
    """What a run with a budget may take."""
    from reshard.geometry.sizes import parse_bytes  # not earlier: a run's peak begins with ours

    return parse_bytes(budget) / MIB + BESIDE_MIB


def main() -> int:
    """Parse the command line, measure, print a table for each rate of change."""
    parser = argparse.ArgumentParser(description="Measure deltas of weights.")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--percent", default="0.3,1,3,100", help="of the elements that differ")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="256MiB", help="of memory")
    parser.add_argument("--memory", action="store_true", help="only the peaks of reshard, once")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    is_within = True
    for percent in given.percent.split(","):
        work = Path(tempfile.mkdtemp(prefix="deltas-", dir=given.work))
        try:
            prepare(work, given.mib, percent)
            act = measure_memory if given.memory else measure
            is_within = act(given, percent, work) and is_within
        finally:
            shutil.rmtree(work)
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
