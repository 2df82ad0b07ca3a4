"""Stock Orbax on gs://: the Checkpointers of v0, the CheckpointManager, and v1.

Trees come and go as lists of a path of keys and an array. They are saved in shards over eight devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gcsfs
import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

Leaves = list[tuple[str, np.ndarray[Any, Any]]]
STEP = 12


def tree_of(leaves: Leaves) -> dict[str, Any]:
    """Nested dicts of sharded arrays; a path is ``a/b/c``."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    root: dict[str, Any] = {}
    for path, array in leaves:
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = jax.device_put(array, NamedSharding(mesh, axes_of(array)))
    return root


def axes_of(array: np.ndarray[Any, Any]) -> PartitionSpec:
    """The first dimensions are split where they can be."""
    axes = [("data", 4), ("model", 2)]
    return PartitionSpec(
        *(
            name if size % n == 0 else None
            for size, (name, n) in zip(array.shape, axes, strict=False)
        )
    )


def leaves_of(tree: Any) -> list[Any]:
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [["/".join(str(part.key) for part in path), np.asarray(leaf)] for path, leaf in found]


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """gcsfs keeps listings in the process, and others write to the bucket meanwhile."""
    for known in list(gcsfs.GCSFileSystem._cache.values()):
        known.invalidate_cache()
    yield


def save(how: str, url: str, leaves: Leaves) -> Any:
    """Saves a tree in one of the ways of ``SAVE``."""
    with fresh():
        SAVE[how](url, tree_of(leaves))


def _save_pytree(url: str, tree: Any, **handler: Any) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**handler)) as checkpointer:
        checkpointer.save(url, ocp.args.PyTreeSave(tree, ocdbt_target_data_file_size=2000))


def _save_standard(url: str, tree: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(url, tree)


def _save_manager(url: str, tree: Any, **options: Any) -> None:
    with ocp.CheckpointManager(url, options=ocp.CheckpointManagerOptions(**options)) as manager:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave({"epoch": 2})
        )
        manager.save(STEP, args=args)
        manager.wait_until_finished()


SAVE: dict[str, Any] = {
    "standard": _save_standard,
    "plain": lambda url, tree: _save_pytree(url, tree, use_ocdbt=False, use_zarr3=True),
    "ocdbt": lambda url, tree: _save_pytree(url, tree, use_ocdbt=True, use_zarr3=True),
    "manager": _save_manager,
    "cleaning manager": lambda url, tree: _save_manager(url, tree, cleanup_tmp_directories=True),
    "v1": lambda url, tree: v1.save(url, tree),
}


def restore(how: str, url: str, leaves: Leaves) -> Any:
    """What stock Orbax restores into the shapes and shardings of a tree, in one of the ways of ``RESTORE``."""
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        tree_of(leaves),
    )
    with fresh():
        return leaves_of(RESTORE[how](url, like))


def _restore_standard(url: str, like: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(url, like)


def _restore_pytree(url: str, like: Any) -> Any:
    arguments = ocp.checkpoint_utils.construct_restore_args(like)
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(url, ocp.args.PyTreeRestore(like, restore_args=arguments))


def _restore_manager(url: str, like: Any) -> Any:
    with ocp.CheckpointManager(url) as manager:
        step = manager.latest_step()
        if step is None:
            raise FileNotFoundError(f"no step in {url}")
        args = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        return manager.restore(step, args=args)["state"]


RESTORE: dict[str, Any] = {
    "standard": _restore_standard,
    "pytree": _restore_pytree,
    "manager": _restore_manager,
    "v1": lambda url, like: v1.load(url, like),
}


def steps(url: str) -> list[int]:
    """The steps that a CheckpointManager finds."""
    with fresh(), ocp.CheckpointManager(url) as manager:
        return list(manager.all_steps())


FUNCTIONS = {"save": save, "restore": restore, "steps": steps}
