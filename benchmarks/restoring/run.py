"""Restore beside stock Orbax and beside the least that a restore does:
``python -m benchmarks.restoring.run [--size small] [--rounds 5] [--digests]``.

Makes the benchmark's tree with stock Orbax, saved from a (4, 2) mesh; then each contender restores it
onto an (8,) mesh of simulated devices, in turn, each time as a fresh process with a warm page cache.
Prints medians: time, peak memory, and bytes read over bytes needed. Ratios are medians over rounds.

The floor (``floor.py``) touches the memory, reads, decodes and takes checksums, and nothing else. ``--digests`` lets
``reshard.fingerprint`` record the tree's digests first, so that the floor and this project compute them too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import Cost, run_once, touch_free_memory, tree_bytes
from benchmarks.trees.sizes import TreeSize

PROGRAMS = {
    "orbax": "benchmarks.peers.orbax_restore",
    "reshard": "benchmarks.restoring.restore_once",
    "floor": "benchmarks.restoring.floor",
}
Costs = dict[str, list[Cost]]


def measure(source: Path, rounds: int, limit_s: float) -> Costs:
    """Every contender's cost in each round; the first to run changes from round to round."""
    costs: Costs = {name: [] for name in PROGRAMS}
    for number in range(rounds):
        names = list(PROGRAMS)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            cost = _run(name, source, limit_s)
            costs[name].append(cost)
            tell(
                f"round {number + 1}/{rounds}: {name}: {cost.wall_s:.2f} s, {cost.peak_mib:.0f} MiB"
            )
    return costs


def _run(name: str, source: Path, limit_s: float) -> Cost:
    for file in source.rglob("*"):
        if file.is_file():
            _warm(file)
    touch_free_memory(2 * tree_bytes(source))
    command = [sys.executable, "-m", PROGRAMS[name], str(source)]
    return run_once(command, source.parent / "nothing", REPOSITORY, limit_s)


def _warm(file: Path) -> None:
    buffer = bytearray(1 << 20)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass


def work_s(cost: Cost) -> float:
    """Time from the call to arrays that are ready, without starting Python and jax."""
    return cost.wall_s - cost.sync_s - (cost.startup_s or 0)


def amplification(cost: Cost, needed_mib: float) -> float:
    """Bytes read over bytes needed."""
    return (cost.read_mib or 0) / needed_mib


def ratio(costs: Costs, value: Callable[[Cost], float], other: str = "orbax") -> float:
    """Median over the rounds of ours divided by the other's."""
    pairs = zip(costs["reshard"], costs[other], strict=True)
    return statistics.median(value(ours) / value(theirs) for ours, theirs in pairs)


def summary(costs: Costs) -> list[str]:
    """The table, a line for each contender and one for the ratios."""
    needed = statistics.median(c.needed_mib or 0 for c in costs["reshard"])
    lines = [
        "| medians | restore s | whole process s | peak MiB | read / needed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in costs.items():
        cells = [
            f"{statistics.median(map(work_s, found)):.2f}",
            f"{statistics.median(c.wall_s - c.sync_s for c in found):.2f}",
            f"{statistics.median(c.peak_mib for c in found):.0f}",
            f"{statistics.median(amplification(c, needed) for c in found):.3f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ratios = (
        ratio(costs, work_s),
        ratio(costs, lambda c: c.wall_s - c.sync_s),
        ratio(costs, lambda c: c.peak_mib),
    )
    lines.append(f"| reshard / orbax | {' | '.join(f'{r:.2f}' for r in ratios)} | |")
    lines.append(f"| reshard / floor | {ratio(costs, work_s, 'floor'):.2f} | | | |")
    return lines


def main() -> None:
    """Parse the command line, make the tree, measure, print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="reshard-bench-") as folder:
        source = arguments.tree or Path(folder) / "source"
        if not arguments.tree:
            tell("making the source checkpoint with stock Orbax")
            command = [
                sys.executable,
                "-m",
                "benchmarks.trees.make_tree",
                str(source),
                "--size",
                arguments.size,
            ]
            subprocess.run(command, check=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL)
        if arguments.digests:
            command = [sys.executable, "-m", "reshard", "fingerprint", str(source)]
            subprocess.run(command, check=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL)
        costs = measure(source, arguments.rounds, arguments.limit)
    print("\n".join(summary(costs)))
    if arguments.json:
        rounds = {name: [asdict(c) for c in found] for name, found in costs.items()}
        size = TreeSize.named(arguments.size).nbytes
        arguments.json.write_text(
            json.dumps({"tree_bytes": size, "rounds": rounds}, indent=1) + "\n"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restoring.run", description=__doc__)
    add = parser.add_argument
    add("--size", default="small", help="tiny, small (0.25 GB), full (2.25 GB) or a number of GiB")
    add("--rounds", type=int, default=5)
    add("--tree", type=Path, help="a source made by benchmarks.trees.make_tree with the same size")
    add("--digests", action="store_true", help="record the tree's digests first (changes --tree)")
    add("--limit", type=float, default=600, help="seconds after which a run is stopped")
    add("--json", type=Path, help="file for everything that was measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
