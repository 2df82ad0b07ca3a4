"""Runs the contenders in turn, round after round, each in a fresh process and on clean ground."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.conversion.contenders import CONTENDERS, Workplace
from benchmarks.measure import (
    Cost,
    RunFailedError,
    RunTooLongError,
    memory_bytes,
    run_once,
    touch_free_memory,
    tree_bytes,
)

REPOSITORY = Path(__file__).parents[2]

TOUCHED_TREES = 4
"""Free memory made resident before each run, in sizes of the tree: the most that a contender fills."""


@dataclass
class Results:
    """What the rounds gave: per contender its costs in order, or why it has none.

    Attributes:
        left_out: contenders that were not run, or not to the end, and why; that is a result.
        failed: contenders that ended with an error, and what they said; that is a defect.
    """

    costs: dict[str, list[Cost]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def is_out(self, name: str) -> bool:
        return name in self.left_out or name in self.failed


def run_rounds(names: list[str], work: Workplace, rounds: int, limit_s: float) -> Results:
    """Measure the contenders ``rounds`` times, alternating, each round beginning with another."""
    results = Results()
    for name in {need for n in names for need in CONTENDERS[n].needs}:
        _prepare(name, work, limit_s, results)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            _measure(name, work, limit_s, results, f"round {number + 1}/{rounds}")
    return results


def _prepare(name: str, work: Workplace, limit_s: float, results: Results) -> None:
    """Make the output that other contenders read; without it, those are left out."""
    cost = _attempt(name, work, limit_s, results)
    if cost:
        work.target.rename(work.root / name)
        tell(f"prepared: {CONTENDERS[name].label}")
    _clear(work)


def _measure(name: str, work: Workplace, limit_s: float, results: Results, where: str) -> None:
    missing = [need for need in CONTENDERS[name].needs if not (work.root / need).exists()]
    if missing and not results.is_out(name):
        results.left_out[name] = f"there is no output of {', '.join(missing)} to read"
    if results.is_out(name):
        return
    touch_free_memory(TOUCHED_TREES * tree_bytes(work.source))
    _warm(work)  # afterwards, since touching takes some of the page cache
    cost = _attempt(name, work, limit_s, results)
    _clear(work)
    if cost:
        results.costs.setdefault(name, []).append(cost)
        tell(f"{where}: {CONTENDERS[name].label}: {cost.wall_s:.2f} s, {cost.peak_mib:.0f} MiB")


def _attempt(name: str, work: Workplace, limit_s: float, results: Results) -> Cost | None:
    try:
        return run_once(CONTENDERS[name].command(work), work.target, REPOSITORY, limit_s)
    except RunTooLongError as reason:
        results.left_out[name] = str(reason)
        tell(f"{CONTENDERS[name].label}: {reason}")
    except RunFailedError as reason:
        results.failed[name] = str(reason)
        tell(f"{CONTENDERS[name].label}: {reason}")
    return None


def _warm(work: Workplace) -> None:
    """Read what will be read, so that all find it in the page cache, unless memory cannot hold it."""
    roots = (work.source, work.raw, work.zstd)
    if sum(map(tree_bytes, roots)) > memory_bytes() / 2:
        return
    buffer = bytearray(2**20)
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                with Path(folder, name).open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass


def _clear(work: Workplace) -> None:
    """Take the target away, and whatever a stopped run left beside it.

    Files are emptied, and removed in the end: ext4 steps over every inode that was freed within the last
    minutes when it looks for a free one, so that whoever makes many files next would pay for it.
    """
    for leftover in work.target.parent.glob(f"*{work.target.name}*"):
        if leftover.is_dir():
            aside = tempfile.mkdtemp(prefix="done-", dir=work.root)
            for file in leftover.rename(aside).rglob("*"):
                if file.is_file() and not file.is_symlink():
                    os.truncate(file, 0)


def tell(line: str) -> None:
    """One line of progress for whoever waits."""
    print(line, file=sys.stderr, flush=True)
