"""Peak memory of random plans: ``python -m benchmarks.memory.random_plans [--plans 40] [--seed 0] [--mib 64]``.

Each plan draws a codec, how zarr lays out the elements, the size of chunks, a command (convert, verify, diff), the form of
the target, a budget and workers, from a seed, and runs in a fresh process as ``benchmarks.memory.run`` does. A plan that is
refused runs again with the budget that the refusal names. Prints each run and the worst excess over the budget and 128 MiB;
ends with 1 where there is one, or where a budget that was named did not do.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory.run import BASE_MIB, COLUMNS, ROWS, Case, is_kept, row, run_within
from benchmarks.memory.sources import make_sources

CODECS = ("zstd", "gzip", "blosc", "raw")
FORMS = ("C2", "F2", "T3", "B2")
CHUNKS_MIB = (4, 16, 32)
COMMANDS = ("convert", "convert", "verify", "diff")
BUDGETS_MIB = (16, 32, 48, 64, 100, 160, 256)
WORKERS = (1, 2, 4)
TARGETS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "zstd"},
    {"compression": "gzip"},
    {"compression": "blosc"},
    {"compression": "keep"},
    {"ocdbt": True},
    {"check": "readback"},
    {"cast": {"w": "bfloat16"}},
    {"to": "safetensors"},
    {"to": "safetensors", "files": "ranks"},
    {"to": "safetensors", "files": "dcp"},
)


def plans(count: int, seed: int) -> Iterator[tuple[Case, int, int]]:
    """Cases with a budget in MiB and a number of workers; the same for the same seed."""
    drawn = random.Random(seed)  # noqa: S311  repeatable, not secret
    for number in range(count):
        command = drawn.choice(COMMANDS)
        source = f"turned-{drawn.choice(CODECS)}-{drawn.choice(FORMS)}-{drawn.choice(CHUNKS_MIB)}"
        axes, target = drawn.choice((ROWS, COLUMNS)), drawn.choice(TARGETS)
        options = tuple(target.items()) if command == "convert" else ()
        told = " ".join(f"{name}={value}" for name, value in options)
        budget, workers = drawn.choice(BUDGETS_MIB), drawn.choice(WORKERS)
        to = " to rows" if axes == ROWS else " to columns"
        label = f"{number}: {command} {source}{to if command == 'convert' else ''} {told}".strip()
        yield Case(f"{label}, {workers} workers", source, axes, options, command), budget, workers


def main() -> None:
    """Run the plans, print each run and the worst excess."""
    parser = argparse.ArgumentParser(description="Peak memory of random plans.")
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mib", type=int, default=64, help="size of the tensor")
    parser.add_argument("--folder", type=Path, help="where sources and targets lie meanwhile")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="reshard-memory-", dir=arguments.folder))
    excess, broken = [], 0
    print("| case | max_memory MiB | allowed MiB | planned MiB | measured MiB |")
    print("|---|---:|---:|---:|---:|")
    try:
        for case, budget, workers in plans(arguments.plans, arguments.seed):
            make_sources(root, {case.source}, arguments.mib, 0, 0)
            runs = list(run_within(case, root, root / "target", budget, workers))
            shutil.rmtree(root / case.source)
            for mib, outcome in runs:
                print(row(case, mib, outcome), flush=True)
                excess.append((outcome.peak - BASE_MIB - mib, case.label))
                broken += not is_kept(mib, outcome)
            broken += bool(runs[-1][1].refused)
    finally:
        shutil.rmtree(root)
    worst, label = max(excess)
    print(
        f"{arguments.plans} plans, {len(excess)} runs, {broken} broken; worst: {worst:+.0f} MiB against what is allowed ({label})"
    )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
