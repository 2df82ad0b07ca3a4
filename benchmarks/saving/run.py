"""Saving a live tree, ours beside Orbax's: ``python -m benchmarks.saving.run [--size small] [--rounds 5]``.

Every saver runs in a fresh process with the same tree on eight simulated devices, in turn, each round
beginning with another; ratios are taken round by round. Ours computes the digest of every tensor;
Orbax has none. Both are timed until the file system is synced.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import tree_bytes

SAVERS = ("orbax", "orbax-raw", "reshard", "reshard-zstd")
COLUMNS = ("saving_s", "call_s", "peak_mib", "grown_mib", "written_mib")
_FIELD = re.compile(r"(\w+)=([\d.]+)")
_LIMIT_S = 1200

Cost = dict[str, float]


def save_once(who: str, size: str, work: Path) -> Cost:
    """One save in a fresh process; what it wrote is removed."""
    target = work / "checkpoint"
    command = [sys.executable, "-m", "benchmarks.peers.save_tree", who, size, str(target)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    cost = {name: float(value) for name, value in _FIELD.findall(done.stdout)}
    cost["written_mib"] = tree_bytes(target) / 2**20
    for leftover in work.iterdir():
        shutil.rmtree(leftover)
    return cost


def run_rounds(size: str, rounds: int, work: Path) -> dict[str, list[Cost]]:
    """Every saver's costs, round by round."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    for number in range(rounds):
        turn = number % len(SAVERS)
        for who in SAVERS[turn:] + SAVERS[:turn]:
            costs[who].append(cost := save_once(who, size, work))
            tell(f"round {number + 1}/{rounds}: {who}: {cost['saving_s']:.2f} s")
    return costs


def table(costs: dict[str, list[Cost]]) -> str:
    """Medians, and the median of each round's ratio to Orbax, in Markdown."""
    lines = [f"| medians | {' | '.join(COLUMNS)} | × orbax |", f"|---|{'---:|' * 6}"]
    for who, found in costs.items():
        cells = [f"{statistics.median(c[column] for c in found):.2f}" for column in COLUMNS]
        pairs = zip(found, costs["orbax"], strict=True)
        ratio = statistics.median(ours["saving_s"] / theirs["saving_s"] for ours, theirs in pairs)
        lines.append(f"| {who} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description="Measure saving beside Orbax.")
    parser.add_argument("--size", default="small", help="tiny, small, full or a number of GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="save-", dir=arguments.work))
    try:
        print(table(run_rounds(arguments.size, arguments.rounds, work)))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
