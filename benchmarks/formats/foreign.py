"""What torch and Keras saved, beside ``cp`` and their own libraries: ``python -m benchmarks.formats.foreign [--mib 1024] [--rounds 3]``.

A distributed checkpoint of torch becomes safetensors, and a ``.weights.h5`` file of Keras becomes Orbax. Each contender is a fresh
process, in turn, each round beginning with another, timed until its output is on the disk.
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

TORCH = str(REPOSITORY / ".oracles" / "torch" / "bin" / "python")
BY_TORCH = [TORCH, str(REPOSITORY / "benchmarks" / "peers" / "torch_dcp.py")]
BY_KERAS = [sys.executable, "-m", "benchmarks.peers.keras_orbax"]
CONVERT = [str(Path(sys.executable).parent / "reshard"), "convert", "--quiet"]


def contenders(saved: Path, weights: Path, budget: str) -> dict[str, list[str]]:
    """The commands, each without its target, which is the last word."""
    ours = [*CONVERT, "--max-memory", budget]
    return {
        "cp": ["cp", "-r", str(saved)],
        "DCP to safetensors: script": [*BY_TORCH, "to-safetensors", str(saved)],
        f"DCP to safetensors: reshard, {budget}": [*ours, "--to", "safetensors", str(saved)],
        "Keras to Orbax: script": [*BY_KERAS, "to-orbax", str(weights)],
        f"Keras to Orbax: reshard, {budget}": [*ours, "--to", "orbax", str(weights)],
    }


def prepare(work: Path, mib: int) -> tuple[Path, Path]:
    """The checkpoint of torch and the file of Keras, of about the same size."""
    saved, weights = work / "saved", work / "model.weights.h5"
    for words in ([*BY_TORCH, "make", str(saved)], [*BY_KERAS, "make", str(weights)]):
        subprocess.run([*words, str(mib)], cwd=REPOSITORY, check=True, capture_output=True)
    return saved, weights


def main() -> None:
    """Parse the command line, measure, print the table, in which ``script`` is torch, or h5py and Orbax."""
    parser = argparse.ArgumentParser(description="Measure conversions from torch and Keras.")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="256MiB", help="of memory")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="foreign-", dir=given.work))
    try:
        saved, weights = prepare(work, given.mib)
        commands = contenders(saved, weights, given.budget)
        print(table(run_rounds(commands, given.rounds, work, tree_bytes(saved))))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
