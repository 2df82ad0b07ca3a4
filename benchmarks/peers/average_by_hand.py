"""Averages in the shortest way: ``python -m benchmarks.peers.average_by_hand make|read|mean SOURCE… TARGET``.

``make`` writes random bfloat16 weights. ``read`` reads all sources and copies the first, no more: the least that any program must do.
``mean`` holds one tensor of all sources in float64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

NAME = "model.safetensors"
ROWS, COLUMNS = 4096, 4096
BUFFER_BYTES = 4 << 20


def make(target: Path, mib: int, seed: int) -> None:
    """So many MiB of weights, in tensors of 32 MiB."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for number in range(max(1, mib // 32)):
        whole = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) * np.float32(0.02)
        tensors[f"layer{number}"] = whole.astype(ml_dtypes.bfloat16)
    target.mkdir(parents=True)
    save_file(tensors, target / NAME)


def read(*folders: Path) -> None:
    """Reads every source; the first is written to the target as it is read."""
    *sources, target = folders
    target.mkdir()
    memory = memoryview(bytearray(BUFFER_BYTES))
    with (target / NAME).open("wb", buffering=0) as out:
        for source in sources:
            with (source / NAME).open("rb", buffering=0) as file:
                while count := file.readinto(memory):
                    if source == sources[0]:
                        out.write(memory[:count])


def mean(*folders: Path) -> None:
    """The average, tensor by tensor; double rounding is not minded."""
    *sources, target = folders
    files = [safe_open(source / NAME, "numpy") for source in sources]
    made = {}
    for name in files[0].keys():  # noqa: SIM118  (no mapping)
        total = sum(file.get_tensor(name).astype(np.float64) for file in files) / len(files)
        made[name] = total.astype(ml_dtypes.bfloat16)
    target.mkdir()
    save_file(made, target / NAME)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "make":
        make(Path(words[2]), int(words[0]), int(words[1]))
    else:
        {"read": read, "mean": mean}[what](*map(Path, words))
