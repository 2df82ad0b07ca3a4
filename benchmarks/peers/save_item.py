"""Stock Orbax saves one item of a step: ``save_item DST SEED MIB``, from mesh (4, 2), both dimensions split.

Four tensors, half of the bytes in float32 and half in bfloat16. Values are a block of normally
distributed numbers, repeated with another scale, since drawing 30 GiB would take minutes; the block is
larger than zstd's window, so that it compresses no better.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.devices import source_sharding

import jax  # isort: skip
import numpy as np  # isort: skip
import orbax.checkpoint as ocp  # isort: skip

COLUMNS = 4096
BLOCK_ROWS = 2048
CONCURRENT_GB = 1


def tensor(seed: int, rows: int, dtype: str) -> jax.Array:
    """A tensor of ``rows`` (a multiple of the block's, or fewer) × 4,096 elements on the mesh."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal((min(rows, BLOCK_ROWS), COLUMNS), np.float32)
    values = np.empty((rows, COLUMNS), jax.numpy.dtype(dtype))
    for number, start in enumerate(range(0, rows, len(block))):
        values[start : start + len(block)] = block[: rows - start] * (0.02 + 0.001 * number)
    return jax.device_put(values, source_sharding())


def item(seed: int, mib: int) -> dict[str, Any]:
    """Four tensors of together ``mib`` MiB."""
    rows = mib * 16  # a quarter of the bytes, in rows of 16 KiB
    dtypes = ("float32", "bfloat16", "float32", "bfloat16")
    sizes = (rows, 2 * rows, rows, 2 * rows)
    return {
        f"layer_{i}": {"kernel": tensor(seed * 4 + i, size, dtype)}
        for i, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))
    }


if __name__ == "__main__":
    folder, seed, mib = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with ocp.StandardCheckpointer(save_concurrent_gb=CONCURRENT_GB) as checkpointer:
        checkpointer.save(folder.absolute(), item(seed, mib))
