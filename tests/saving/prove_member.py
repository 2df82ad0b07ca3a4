"""One process of a group that proves its shards: ``prove_member.py INDEX COUNT ADDRESS IDENTITY``."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard

SHAPE = (2048, 2048)
"""16 MiB of float32: 16 nodes of 512 × 512 elements."""


def weights(*, is_flipped: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("rows", "columns")}
    if is_flipped:
        made["rows"].view(np.uint32)[2047, 5] ^= 1
    return made


def spread(array: np.ndarray, mesh: Mesh, *axes: Any) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def main() -> None:
    index, count, address, identity = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, index)
    mesh = Mesh(np.array(jax.devices()).reshape(8), ("x",))
    found = weights(is_flipped=True)
    arrays = {
        "rows": spread(found["rows"], mesh, "x"),
        "columns": spread(found["columns"], mesh, None, "x"),
    }
    report = reshard.prove(arrays, identity)
    print(json.dumps(report.to_dict()))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
