"""What ``convert --identity`` adds to the processor time of a run: paired medians, each run in a process of its own.

python -m benchmarks.conversion.identity_cost [--rounds 11] [--folder /dev/shm]

In each round every mode runs once, one after the other, so that a busy machine slows all of them. What a mode adds is the median of
its differences from ``none`` in the same round; user and system time count, wall time does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = ("none", "carry", "compute")
LAYERS = 32
ROWS, COLUMNS = 1024, 4096
BYTES = LAYERS * ROWS * COLUMNS * 4

_MAKE = """
import sys, numpy as np, reshard
layers, rows, columns = map(int, sys.argv[2:])
rng = np.random.default_rng(1)
kinds = {"raw": "none", "zstd": "zstd"}
tree = {f"layers/{n}": rng.standard_normal((rows, columns), dtype="float32") for n in range(layers)}
for name, compression in kinds.items():
    reshard.save(f"{sys.argv[1]}/{name}", tree, compression=compression)
    reshard.identify(f"{sys.argv[1]}/{name}", write=True)
"""

_CONVERT = """
import sys, reshard
reshard.convert(sys.argv[1], sys.argv[2], identity=sys.argv[3], chunk_bytes="8MiB")
"""


def seconds(source: Path, target: Path, mode: str) -> float:
    """User and system time of one conversion in a process of its own."""
    command = [sys.executable, "-c", _CONVERT, str(source), str(target), mode]
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    if status:  # there may be no target
        raise SystemExit(f"a conversion ended with status {status}")
    shutil.rmtree(target)
    return used.ru_utime + used.ru_stime


def measure(source: Path, target: Path, rounds: int) -> dict[str, list[float]]:
    """The time of each mode in each round."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            found[mode].append(seconds(source, target, mode))
    return found


def main() -> None:
    """Prints a row of a table for each source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--folder", default=None)
    asked = parser.parse_args()
    print("| source → raw target | none | carry adds | compute adds | compute adds per GB |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        sizes = map(str, (LAYERS, ROWS, COLUMNS))
        subprocess.run([sys.executable, "-c", _MAKE, folder, *sizes], check=True)
        for name in ("raw", "zstd"):
            found = measure(Path(folder, name), Path(folder, "target"), asked.rounds)
            plain = found["none"]
            added = {
                mode: statistics.median(a - b for a, b in zip(found[mode], plain, strict=True))
                for mode in MODES[1:]
            }
            print(
                f"| {name} | {statistics.median(plain):.2f} s | {added['carry']:+.2f} s | {added['compute']:+.2f} s | "
                f"{added['compute'] / BYTES * 1e9:.2f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
