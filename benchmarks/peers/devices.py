"""Eight simulated CPU devices, and the shardings of the benchmark's tree.

Importing this module sets jax up, so it comes before ``import jax`` in every peer.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SOURCE_AXES = PartitionSpec("data", "model")


def source_sharding() -> NamedSharding:
    """Mesh (4, 2), both dimensions split: how training saved every tensor."""
    mesh = Mesh(_devices((4, 2)), ("data", "model"))
    return NamedSharding(mesh, SOURCE_AXES)


def target_sharding(name: str) -> NamedSharding:
    """Mesh (8,): the embedding split by rows, everything else by columns."""
    mesh = Mesh(_devices((8,)), ("model",))
    spec = PartitionSpec("model", None) if "embedding" in name else PartitionSpec(None, "model")
    return NamedSharding(mesh, spec)


def row_sharding() -> NamedSharding:
    """Mesh (8,): everything split by rows."""
    return NamedSharding(Mesh(_devices((8,)), ("x",)), PartitionSpec("x", None))


def _devices(shape: tuple[int, ...]) -> np.ndarray:
    return np.array(jax.devices()).reshape(shape)
