"""One process of a group: ``group_member.py INDEX COUNT ADDRESS PATH [save]``.

It saves ``SHAPE`` tensors where told to, restores them onto another mesh, and prints what it found.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import reshard
from tests.public.save_and_restore import pieces


def save(path: str) -> None:
    """Split over data=2 and model=4; arrays of numpy are the same in all processes."""
    layouts = pieces.layouts(reshard.DeviceMesh((2, 4), ("data", "model"), jax.devices()))
    tree: dict[str, Any] = {
        name: reshard.distribute_tensor(values, layouts[name])
        for name, values in pieces.arrays().items()
    }
    tree["table"] = pieces.table()
    tree["step"] = 3
    handle = reshard.save(path, tree, wait=False, timeout=120)
    tree.clear()
    assert handle is not None
    handle.wait()


def restored(path: str) -> dict[str, Any]:
    """What this process holds of each array, and what it read of the checkpoint."""
    layouts = pieces.layouts(reshard.DeviceMesh((4, 2), ("data", "model"), jax.devices()))
    reports: list[Any] = []
    tree = reshard.restore(path, layout=layouts, drop=["table"], report=reports.append)
    table = reshard.restore(path, select=["table"], partition=3)["table"]
    right = {
        name: all(
            s.data.dtype == values.dtype and np.array_equal(s.data, values[s.index])
            for s in tree[name].addressable_shards
        )
        for name, values in pieces.arrays().items()
    }
    return {
        "right": right,
        "places": [len(tree[name].sharding.device_set) for name in right],
        "shards": [len(tree[name].addressable_shards) for name in right],
        "step": tree["step"],
        "table": [table.partition_strategy, np.array_equal(table.numpy(), pieces.TABLE)],
        "read": reports[-1].read_bytes,
        "needed": reports[-1].needed_bytes,
    }


def main() -> None:
    index, count, address, path = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, index)
    if "save" in sys.argv[5:]:
        save(path)
    print(json.dumps(restored(path)))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
