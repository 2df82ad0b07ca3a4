"""A base with an adapter merged, beside a plain conversion of it: ``python -m benchmarks.arithmetic.lora [--mib 512] [--rounds 3]``.

Every weight of the base, bfloat16 of 4096 × 4096, has factors of the adapter. Each contender is a fresh process, in turn, timed until its output is
on the disk. With ``--cold`` the base is dropped from the system's cache before each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.conversion.rounds import REPOSITORY, tell
from benchmarks.measure import Cost, run_once

RESHARD = str(Path(sys.executable).parent / "reshard")
SIZE = 4096
RANKS = (16, 32)
LIMIT_S = 1800


def prepare(work: Path, mib: int) -> None:
    """The base, and an adapter of each rank."""
    rng = np.random.default_rng(0)
    names = [f"model.layers.{number}.mlp.up_proj" for number in range(max(1, mib // 32))]
    weight = rng.normal(size=(SIZE, SIZE)).astype(ml_dtypes.bfloat16)
    for number, name in enumerate(names):
        (work / "base").mkdir(exist_ok=True)
        save_file({f"{name}.weight": weight}, work / "base" / f"model-{number:05}.safetensors")
    for rank in RANKS:
        folder = work / f"rank_{rank}"
        folder.mkdir()
        factors = {
            f"base_model.model.{name}.lora_{factor}.weight": rng.normal(size=shape).astype(np.float32)
            for name in names
            for factor, shape in (("A", (rank, SIZE)), ("B", (SIZE, rank)))
        }  # fmt: skip
        save_file(factors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 0.01}
        (folder / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    """Parse the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description="Measure a merge of an adapter.")
    parser.add_argument("--mib", type=int, default=512, help="of the base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="read from the disk")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="lora-", dir=given.work))
    try:
        prepare(work, given.mib)
        convert = [RESHARD, "convert", "--quiet", "--max-memory", "1GiB", str(work / "base")]
        commands = {"convert": convert} | {
            f"rank {rank}": [*convert, "--lora", str(work / f"rank_{rank}")] for rank in RANKS
        }
        costs: dict[str, list[Cost]] = defaultdict(list)
        for turn in range(given.rounds):
            for name, command in commands.items():
                if given.cold:
                    _forget(work)
                target = work / "made"
                costs[name].append(run_once([*command, str(target)], target, REPOSITORY, LIMIT_S))
                tell(f"round {turn + 1}/{given.rounds}: {name}: {costs[name][-1].wall_s:.2f} s")
                shutil.rmtree(target)
    finally:
        shutil.rmtree(work)
    print(f"\na base of {given.mib} MiB, {'cold' if given.cold else 'warm'}\n")
    print("| medians | wall s | CPU s | peak MiB | × convert |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, found in costs.items():
        wall, cpu, peak = (
            statistics.median(getattr(cost, what) for cost in found)
            for what in ("wall_s", "cpu_s", "peak_mib")
        )
        plain = zip(found, costs["convert"], strict=True)
        ratio = statistics.median(mine.wall_s / other.wall_s for mine, other in plain)
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {peak:.0f} | {ratio:.2f} |", flush=True)


def _forget(folder: Path) -> None:
    """Drops the files below a folder from the system's cache."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
