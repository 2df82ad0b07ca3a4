"""Live trees to save, and what they must come back as."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

import reshard
from tests.orbax_trees import as_numpy, mesh, put


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    kernel: Any
    bias: Any


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def training_state() -> dict[str, Any]:
    params = {
        "dense": Block(put(random(64, 32), "data", "model"), put(random(8), "model")),
        "layers": [
            put(random(16, 12, dtype=ml_dtypes.bfloat16), ("data", "model")),
            put(random(3)),
        ],
    }
    turned = Mesh(np.array(jax.devices())[::-1].reshape(2, 4), ("x", "y"))
    return {
        "params": params,
        "opt": optax.adam(1e-3).init(params),
        "net": nnx.state(Net(nnx.Rngs(0))),
        "pair": Pair(jnp.arange(6), (put(random(4, 4), on=turned), None)),
        "turned": put(random(8, 8), "y", "x", on=turned),
        "few": put(random(8), "x", on=mesh((4,), ("x",))),
        "third": jax.device_put(random(5), jax.devices()[3]),
        "int4": put(np.arange(-8, 8).astype(ml_dtypes.int4), "data"),
        "fp8": put(random(8, 8, dtype=ml_dtypes.float8_e4m3fn), None, "model"),
        "bool": put(np.arange(8) % 3 == 0, "data"),
        "rng": jax.random.key(7),
        "rngs": put(jax.random.split(jax.random.key(3), 8), "data"),
        "old_rng": jax.random.PRNGKey(1),
        "rbg": jax.random.key(2, impl="rbg"),
        "step": 7, "rate": 1.5, "on": True, "z": 1 + 2j,
        "host": random(5, 3), "host_scalar": np.float32(2.5), "host_bool": np.bool_(True),
        "fortran": np.asfortranarray(random(6, 4)), "swapped": random(4).astype(">f4"),
        "cut": random(8, 8)[::2, 1::3],
        "none": None, "empty": {"dict": {}, "list": [], "tuple": (), "state": optax.EmptyState()},
        "numbers": {1: np.ones(2), 2: np.zeros(2)},
    }  # fmt: skip


def gspmd() -> jax.Array:
    """An array whose sharding names no mesh: tiles (2, 4) over devices in another order."""
    from jax._src.lib import xla_client
    from jax._src.sharding_impls import GSPMDSharding

    op = xla_client.OpSharding()
    op.type = xla_client.OpSharding.Type.OTHER
    op.tile_assignment_dimensions = [2, 2, 2]
    op.tile_assignment_devices = [0, 2, 1, 3, 4, 6, 5, 7]
    op.replicate_on_last_tile_dim = True
    return jax.device_put(random(8, 6), GSPMDSharding(jax.devices(), op))


def tables() -> dict[str, reshard.ShardedVariable]:
    make = reshard.ShardedVariable
    uneven = [random(rows, 6)[:, :] + rows for rows in (3, 1, 4)]
    return {
        "mod": make.split(random(13, 4), 5, partition_strategy="mod", devices=jax.devices()),
        "mod_columns": make.split(random(4, 13), 4, axis=1, partition_strategy="mod"),
        "div": make.split(random(13, 4), 5, devices=jax.devices()),
        "columns": make.split(random(4, 12), 3, axis=1),
        "uneven": make(uneven),
        "with_empty": make([random(2, 3), random(0, 3), random(5, 3) + 1]),
        "more_than_rows": make.split(random(3, 2), 5, partition_strategy="mod"),
        "of_sharded": make([put(random(8, 4), "data", "model"), put(random(16, 4) + 1, "data")]),
    }


def leaves(tree: Any) -> dict[str, Any]:
    """Arrays, numbers and texts by their path, however deep."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_text(key) for key in path): leaf for path, leaf in found}


def _text(key: Any) -> str:
    return str(next(getattr(key, a) for a in ("key", "idx", "name") if hasattr(key, a)))


def assert_same(found: Any, wanted: Any, name: str = "") -> None:
    """Equal bits, and for jax arrays the same sharding and kind of key."""
    a, b = as_numpy(found), as_numpy(wanted)
    assert (a.shape, a.dtype) == (b.shape, b.dtype.newbyteorder("=")), name
    assert a.tobytes() == b.astype(a.dtype).tobytes(), name
    if isinstance(wanted, jax.Array):
        assert found.dtype == wanted.dtype, name
        assert _same_sharding(found.sharding, wanted.sharding, wanted.shape), name


def _same_sharding(found: Any, wanted: Any, shape: tuple[int, ...]) -> bool:
    if isinstance(wanted, NamedSharding | SingleDeviceSharding):
        return bool(found == wanted)
    return bool(found.devices_indices_map(shape) == wanted.devices_indices_map(shape))
