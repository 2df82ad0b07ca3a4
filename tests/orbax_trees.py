"""Trees of arrays, and every way in which stock Orbax saves them.

For tests of whatever reads, plans or converts checkpoints::

    @pytest.mark.parametrize("save", [s for _, s in save_modes()], ids=[i for i, _ in save_modes()])
    def test_something(save, tmp_path):
        tree = small_tree()
        path = save(tmp_path / "checkpoint", tree)   # the folder to open
        arrays = expected_arrays(tree)               # what must be found in it, by name
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

Save = Callable[[Path, Any], Path]
"""Saves a tree at a path that is not there yet, and gives the path of the checkpoint to open."""

DTYPES = (
    "float32", "float16", "bfloat16", "float8_e3m4", "float8_e4m3b11fnuz",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "int2", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "bool", "complex64", "complex128", "float64",
)  # fmt: skip
"""Every dtype that stock Orbax saves (TensorStore has no uint2, uint4 and float8_e4m3)."""


def mesh(shape: tuple[int, ...] = (4, 2), names: tuple[str, ...] = ("data", "model")) -> Mesh:
    """A mesh of the simulated devices."""
    return Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), names)


def put(array: Any, *axes: Any, on: Mesh | None = None) -> jax.Array:
    """The array split by mesh axes, one entry per dimension."""
    return jax.device_put(array, NamedSharding(on or mesh(), PartitionSpec(*axes)))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that these paths name."""
    tree: dict[str, Any] = {}
    for path, array in flat.items():
        *folders, last = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = array
    return tree


def small_tree() -> dict[str, Any]:
    """A training state in small: several meshes, dtypes, containers, optax state, odd names.

    Holds no strings and no numpy scalars, which some of Orbax's savers refuse.
    """
    rng = np.random.default_rng(0)
    params = {
        "dense": {
            "kernel": put(rng.normal(size=(64, 64)).astype(np.float32), "data", "model"),
            "bias": put(np.arange(8, dtype=np.float32), "model"),
        },
        "layers": [
            put(rng.normal(size=(16, 12)).astype(ml_dtypes.bfloat16), ("data", "model"), None),
            put(np.zeros((8, 8), np.float32)),
        ],
        "a.b": {"c/d": put(np.float32(3.5))},
    }
    line = mesh((8,), ("shards",))
    return {
        "params": params,
        "opt": optax.adam(1e-3).init(params),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(3), 4),
        "count": 7,
        "rate": 1.5,
        "none": None,
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "numpy": rng.integers(-100, 100, (5, 3)).astype(np.int8),
        "other_mesh": put(np.arange(48, dtype=np.int32).reshape(16, 3), "shards", on=line),
        "one_device": jnp.arange(6, dtype=jnp.uint16),
    }


def dtype_tree() -> dict[str, np.ndarray]:
    """One array of random bits per dtype."""
    rng = np.random.default_rng(1)
    return {dtype: random_array(rng, (6, 8), dtype) for dtype in DTYPES}


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random bits where the type allows all of them, else random values."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool" or "4_" in dtype or dtype in ("int2", "int4"):
        return rng.integers(0, 2, shape).astype(kind)
    bits = rng.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
    return bits.view(kind)[..., 0]


def expected_arrays(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a tree by ``/``-joined name, as they must be found in a checkpoint of it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        prefix + "/".join(map(_key_text, path)): as_numpy(leaf)
        for path, leaf in leaves
        if not isinstance(leaf, str)
    }


def _key_text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    raise TypeError(f"a tree path with a {type(key)}")


def as_numpy(leaf: Any) -> np.ndarray:
    """The array of a leaf; of random keys, their data."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def save_modes() -> list[tuple[str, Save]]:
    """Every way of saving one tree, as (id, function). All take ``small_tree``."""
    return [
        ("v0-standard", save_standard),
        ("v0-ocdbt-zarr2", partial(save_pytree, use_ocdbt=True, use_zarr3=False)),
        ("v0-ocdbt-zarr3", partial(save_pytree, use_ocdbt=True, use_zarr3=True)),
        ("v0-plain-zarr2", partial(save_pytree, use_ocdbt=False, use_zarr3=False)),
        ("v0-plain-zarr3", partial(save_pytree, use_ocdbt=False, use_zarr3=True)),
        ("v0-raw-zarr2", partial(save_pytree, use_compression=False, use_ocdbt=False)),
        ("v0-raw-zarr3", partial(save_pytree, use_compression=False, use_zarr3=True)),
        ("v0-small-chunks", partial(save_pytree, chunk_byte_size=40)),
        ("v0-small-chunks-zarr3", partial(save_pytree, chunk_byte_size=40, use_zarr3=True)),
        ("v0-shard-axes", partial(save_pytree, chunk_byte_size=64, shard_axes=(0,))),
        ("v0-small-data-files", partial(save_pytree, ocdbt_target_data_file_size=2000)),
        ("v0-rich-types", partial(save_pytree, rich_types=True)),
        ("v0-unmerged", save_unmerged),
        ("v0-half-merged", save_half_merged),
        ("v0-manager", save_manager),
        ("v0-manager-items", save_manager_items),
        ("v1-state", save_v1),
        ("v1-named", save_v1_named),
    ]


def save_standard(path: Path, tree: Any) -> Path:
    """StandardCheckpointer, with its defaults."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return path


def save_pytree(
    path: Path,
    tree: Any,
    *,
    chunk_byte_size: int | None = None,
    shard_axes: tuple[int, ...] = (),
    rich_types: bool = False,
    ocdbt_target_data_file_size: int | None = None,
    custom_metadata: Any = None,
    **handler: Any,
) -> Path:
    """PyTreeCheckpointHandler, which takes every option."""
    from orbax.checkpoint._src.metadata.pytree_metadata_options import PyTreeMetadataOptions

    options = PyTreeMetadataOptions(support_rich_types=rich_types)
    save_args = jax.tree.map(
        lambda leaf: ocp.SaveArgs(
            chunk_byte_size=chunk_byte_size,
            shard_axes=tuple(axis for axis in shard_axes if axis < getattr(leaf, "ndim", 0)),
        ),
        tree,
    )
    args = ocp.args.PyTreeSave(
        tree,
        save_args,
        ocdbt_target_data_file_size=ocdbt_target_data_file_size,
        custom_metadata=custom_metadata,
    )
    with ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(pytree_metadata_options=options, **handler)
    ) as checkpointer:
        checkpointer.save(path, args)
    return path


def save_unmerged(path: Path, tree: Any) -> Path:
    """The processes' databases as they are before Orbax merges them."""
    save_pytree(path, tree)
    (path / "manifest.ocdbt").unlink()
    shutil.rmtree(path / "d")
    return path


def save_half_merged(path: Path, tree: Any) -> Path:
    """A merged database that is there but empty, beside those of the processes."""
    import tensorstore as ts

    save_unmerged(path, tree)
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/"}).result()
    store.write(b"x", b"").result()
    store.delete_range(ts.KvStore.KeyRange()).result()
    return path


def save_manager(path: Path, tree: Any) -> Path:
    """A step of a CheckpointManager with one item."""
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    return path / "3"


def save_manager_items(path: Path, tree: Any) -> Path:
    """A step of a CheckpointManager with the tree, an item of JSON, and metrics."""
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(path, options=options, item_names=("state", "meta")) as manager:
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave({"epoch": 2})
        )
        manager.save(12, args=args, metrics={"loss": 0.5})
        manager.wait_until_finished()
    return path / "12"


def save_v1(path: Path, tree: Any) -> Path:
    """v1's ``save``, with its defaults."""
    v1.save(path, tree)
    return path


def save_v1_named(path: Path, tree: Any) -> Path:
    """v1 with the tree under another name than ``state``."""
    v1.save_checkpointables(path, {"model": tree})
    return path
