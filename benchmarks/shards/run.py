"""A ShardedVariable of 8 shards to 3, beside ``cp`` and TensorFlow: ``python -m benchmarks.shards.run [--gib 1] [--rounds 3]``.

Each contender is a fresh process, in turn, each round beginning with another, timed until its output is on the disk.
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

COLUMNS = 1024
BEFORE, AFTER = 8, 3
_MAKE = """
import sys, numpy as np, reshard
random = np.random.default_rng(0)
reshard.save(sys.argv[1], {"table": random.standard_normal((int(sys.argv[2]), int(sys.argv[3])), np.float32)})
"""


def layout(folder: Path, shards: int) -> Path:
    """A layout file that splits the table into so many shards."""
    path = folder / f"{shards}.yaml"
    path.write_text(f"partitions: [{{match: '^table$', fixed_shards: {shards}}}]\n")
    return path


def contenders(source: Path, work: Path, rows: int) -> dict[str, list[str]]:
    """The commands, each without its target, which is the last word."""
    python = REPOSITORY / ".oracles" / "tensorflow" / "bin" / "python"
    program = REPOSITORY / "benchmarks" / "peers" / "tensorflow_shards.py"
    shapes = f"{rows} {COLUMNS} {AFTER}"
    by_tensorflow = f'mkdir "$0" && {python} {program} {source}/ckpt "$0/ckpt" {shapes}'
    command = Path(sys.executable).parent / "reshard"
    options = f"--layout {layout(work, AFTER)} --quiet --max-memory 256MiB"
    ours = f'mkdir "$0" && {command} convert {source}/ckpt "$0/ckpt" {options}'
    return {
        "cp": ["cp", "-r", str(source)],
        "8 to 3: script": ["bash", "-c", by_tensorflow],
        "8 to 3: reshard, 256MiB": ["bash", "-c", ours],
    }


def prepare(work: Path, rows: int) -> Path:
    """The folder of a checkpoint with 8 shards."""
    saved, source = work / "saved", work / "source"
    command = str(Path(sys.executable).parent / "reshard")
    made = [command, "convert", str(saved), str(source / "ckpt"), "--to", "tensorflow", "--quiet"]
    for words in (
        [sys.executable, "-c", _MAKE, str(saved), str(rows), str(COLUMNS)],
        [*made, "--layout", str(layout(work, BEFORE))],
    ):
        subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)
    shutil.rmtree(saved)
    return source


def main() -> None:
    """Parse the command line, measure, print the table, in which ``script`` is TensorFlow."""
    parser = argparse.ArgumentParser(description="Measure another number of shards.")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="shards-", dir=given.work))
    rows = max(BEFORE, int(given.gib * 2**30) // (4 * COLUMNS))
    try:
        source = prepare(work, rows)
        commands = contenders(source, work, rows)
        print(table(run_rounds(commands, given.rounds, work, tree_bytes(source))))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
