"""Stock Orbax restores an item to the host, and its tensors' digests are printed: ``item_digests ITEM``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import benchmarks.peers.devices  # noqa: F401  (sets jax up)

import jax  # isort: skip
import numpy as np  # isort: skip
import orbax.checkpoint as ocp  # isort: skip


def digest(array: jax.Array) -> str:
    """CRC-64/NVME of the row-major bytes."""
    from awscrt.checksums import crc64nvme

    return f"{crc64nvme(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data):016x}"


if __name__ == "__main__":
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(Path(sys.argv[1]).absolute())
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    print(json.dumps({jax.tree_util.keystr(path): digest(array) for path, array in leaves}))
