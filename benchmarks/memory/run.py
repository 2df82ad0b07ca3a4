"""Peak memory against the budget: ``python -m benchmarks.memory.run [--mib 768] [--tensors 100000] [--chunks 100000] [--repeat 1]``.

Each case runs at 64 MiB, 256 MiB and 1 GiB in a fresh process, whose peak the kernel tells (ru_maxrss). The
contract: at most 128 MiB more than the budget, or refused before a byte moves, with the budget that works,
and then with that budget it runs. Printed per case: allowed (128 MiB and the budget), planned (buffers and
metadata), measured. Ends with 1 where the contract is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory.sources import make_sources

MIB = 1 << 20
BASE_MIB = 128
BUDGETS_MIB = (64, 256, 1024)

_LAUNCH = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process between this one and the measured one, whose peak begins with its parent's."""

_RUN = """
import json, sys
import reshard
from reshard import MemoryBudgetError
command, source, target, options = sys.argv[1:]
options = json.loads(options)
try:
    if command in ("verify", "diff"):
        getattr(reshard, command)(source, target, **options)
        print(json.dumps({}))
    else:
        reshard.convert(source, target, **options)
        options.pop("check", None)
        options["overwrite"] = True
        plan = reshard.plan(source, target, **options).plan
        print(json.dumps({"planned": plan.peak_bytes + plan.metadata_bytes,
                          "strategies": sorted({t.strategy for t in plan.tensors})}))
except MemoryBudgetError as error:
    print(json.dumps({"refused": str(error), "smallest": error.smallest_bytes}))
"""


@dataclass(frozen=True)
class Case:
    """What is converted, and how.

    Attributes:
        source: its folder below the sources.
        axes: of every tensor over a mesh of eight.
    """

    label: str
    source: str
    axes: tuple[str | None, ...]
    options: tuple[tuple[str, Any], ...] = ()
    command: str = "convert"


@dataclass(frozen=True)
class Outcome:
    """What one run gave, in MiB; ``planned`` is None for commands that plan nothing."""

    peak: float
    planned: float | None
    refused: str = ""
    smallest: int = 0


TURN = ("map", {"map": [{"from": "w", "to": "w", "shape": "a b -> b a"}]})
LAYERS = ("map", {"map": [{"from": "w", "to": "w.{l}", "shape": "e l f -> f e"}]})

ROWS, COLUMNS, MIDDLE = ("x",), (None, "x"), (None, "x", None)

CASES = [
    Case("zstd in OCDBT, rows to columns", "rows", COLUMNS),
    Case("zstd in OCDBT, columns to rows", "columns", ROWS),
    Case("raw, columns to rows", "raw", ROWS),
    Case("gzip, rows to columns", "gzip", COLUMNS),
    Case("blosc, columns to rows", "blosc", ROWS),
    Case("three dimensions, first to second", "cube", MIDDLE),
    Case("three dimensions, first to last", "cube", (None, None, "x")),
    Case("zstd to zstd, rows to columns", "rows", COLUMNS, (("compression", "zstd"),)),
    Case("zstd to gzip, columns to rows", "columns", ROWS, (("compression", "gzip"),)),
    Case("zstd to blosc, rows to columns", "rows", COLUMNS, (("compression", "blosc"),)),
    Case("zstd to OCDBT, rows to columns", "rows", COLUMNS, (("ocdbt", True),)),
    Case("zstd, small compressed chunks", "rows", COLUMNS,
         (("compression", "zstd"), ("chunk_bytes", "4MiB"))),
    Case("cast to bfloat16, rows to columns", "rows", COLUMNS, (("cast", {"w": "bfloat16"}),)),
    Case("chunks as they are (keep)", "rows", ROWS, (("compression", "keep"),)),
    Case("turned by a map, raw", "raw", ROWS, (TURN,)),
    Case("turned by a map, zstd to safetensors", "rows", (), (TURN, ("to", "safetensors"))),
    Case("layers turned by a map, to safetensors", "cube", (), (LAYERS, ("to", "safetensors"))),
    Case("one zstd chunk", "one-zstd", COLUMNS),
    Case("one gzip chunk", "one-gzip", COLUMNS),
    Case("one blosc chunk", "one-blosc", COLUMNS),
    Case("one raw chunk", "one-raw", COLUMNS),
    Case("many chunks, to columns", "chunks", COLUMNS),
    Case("many chunks, as they are (keep)", "chunks", ROWS, (("compression", "keep"),)),
    Case("many small tensors", "small", ROWS),
    Case("many small tensors, to OCDBT", "small", ROWS, (("ocdbt", True),)),
    Case("read back, columns to rows", "columns", ROWS, (("check", "readback"),)),
    Case("verify two checkpoints", "rows", (), command="verify"),
    Case("verify many small tensors", "small", (), command="verify"),
    Case("order F in zstd, verify", "turned-zstd-F2-16", (), command="verify"),
    Case("transposed in blosc, diff", "turned-blosc-T3-16", (), command="diff"),
    Case("order F in zstd, to rank files", "turned-zstd-F2-16", COLUMNS,
         (("to", "safetensors"), ("files", "ranks"))),
    Case("order F, big-endian, in blosc, to DCP files", "turned-blosc-B2-16", ROWS,
         (("to", "safetensors"), ("files", "dcp"))),
]  # fmt: skip


def run_case(case: Case, sources: Path, target: Path, budget_mib: int, workers: int) -> Outcome:
    """One case in a fresh process; the target is removed."""
    options: dict[str, Any] = {
        **dict(case.options),
        "max_memory": budget_mib * MIB,
        "workers": workers,
    }
    other = sources / ("columns" if case.source == "rows" else case.source)
    if case.command == "convert":
        rules = (
            [{"match": "^w", "axes": list(case.axes)}]
            if case.axes and case.source != "small"
            else []
        )
        options["layout"] = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": rules}
        other = target
    words = [case.command, str(sources / case.source), str(other), json.dumps(options)]
    inner = [sys.executable, "-c", _RUN, *words]
    outer = [sys.executable, "-S", "-c", _LAUNCH, *inner]
    try:
        done = subprocess.run(outer, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    told, peak = done.stdout.splitlines()
    return _outcome(json.loads(told), int(peak) / 1024)


def _outcome(told: dict[str, Any], peak: float) -> Outcome:
    planned = told["planned"] / MIB if "planned" in told else None
    return Outcome(peak, planned, told.get("refused", ""), told.get("smallest", 0) // MIB)


def run_within(
    case: Case, sources: Path, target: Path, budget_mib: int, workers: int
) -> Iterator[tuple[int, Outcome]]:
    """The outcome at this budget and, where that is a refusal, at the budget that it names."""
    outcome = run_case(case, sources, target, budget_mib, workers)
    yield budget_mib, outcome
    if outcome.refused:
        again = run_case(case, sources, target, outcome.smallest, workers)
        yield outcome.smallest, again


def is_kept(budget_mib: int, outcome: Outcome) -> bool:
    """Whether the process stayed within its budget."""
    return outcome.peak <= BASE_MIB + budget_mib


def row(case: Case, budget_mib: int, outcome: Outcome) -> str:
    """A line of the table."""
    planned = "" if outcome.planned is None else f"{outcome.planned:.0f}"
    what = f"refused: {outcome.smallest} MiB work" if outcome.refused else planned
    kept = "" if is_kept(budget_mib, outcome) else " **broken**"
    return f"| {case.label} | {budget_mib} | {BASE_MIB + budget_mib} | {what} | {outcome.peak:.0f}{kept} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Peak memory against the budget.")
    parser.add_argument("--mib", type=int, default=768, help="size of the large tensor")
    parser.add_argument("--tensors", type=int, default=100_000, help="how many small tensors")
    parser.add_argument("--chunks", type=int, default=100_000, help="chunks of one tensor")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS_MIB, help="MiB")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases with this in the name of their source or in their label"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs of each; the table has the highest peak"
    )
    parser.add_argument("--folder", type=Path, help="where sources and targets lie meanwhile")
    return parser.parse_args()


def main() -> None:
    """Make the sources, run every case, print the table."""
    arguments = _arguments()
    root = Path(tempfile.mkdtemp(prefix="reshard-memory-", dir=arguments.folder))
    broken = 0
    try:
        cases = [c for c in CASES if arguments.only in f"{c.source} {c.label}"]
        names = {c.source for c in cases} | {"columns"}
        make_sources(root, names, arguments.mib, arguments.tensors, arguments.chunks)
        print("| case | max_memory MiB | allowed MiB | planned MiB | measured MiB |")
        print("|---|---:|---:|---:|---:|")
        for case in cases:
            for budget in arguments.budgets:
                runs = [
                    dict(run_within(case, root, root / "target", budget, arguments.workers))
                    for _ in range(arguments.repeat)
                ]
                for mib in runs[0]:
                    worst = max((run[mib] for run in runs), key=lambda outcome: outcome.peak)
                    print(row(case, mib, worst), flush=True)
                    broken += not is_kept(mib, worst)
    finally:
        shutil.rmtree(root)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
