"""Orbax restore onto the target mesh, then save: ``orbax_convert default|tuned SRC DST``.

default: StandardCheckpointer as it comes. tuned: plain files instead of OCDBT and 1 GB limits on
what is restored and saved at once, the best of the settings tried.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.peers.devices import target_sharding

import jax  # isort: skip
import orbax.checkpoint as ocp  # isort: skip


def checkpointer(settings: str) -> ocp.StandardCheckpointer:
    """Orbax as it comes, or tuned."""
    if settings == "tuned":
        return ocp.StandardCheckpointer(
            use_ocdbt=False, save_concurrent_gb=1, restore_concurrent_gb=1
        )
    return ocp.StandardCheckpointer()


def target_tree(settings: str, source: str) -> Any:
    """The tree of shapes, dtypes and target shardings that the checkpoint's metadata describes."""
    with checkpointer(settings) as reader:
        metadata = reader.metadata(source).item_metadata.tree
    return jax.tree.map_with_path(
        lambda path, leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=target_sharding(jax.tree_util.keystr(path))
        ),
        metadata,
    )


def convert(settings: str, source: str, target: str) -> None:
    """Restore all of it, save all of it."""
    abstract = target_tree(settings, source)
    with checkpointer(settings) as reader:
        tree = reader.restore(source, abstract)
    jax.block_until_ready(tree)
    with checkpointer(settings) as writer:
        writer.save(target, tree)


if __name__ == "__main__":
    started = time.perf_counter()
    convert(*sys.argv[1:4])
    print(f"working_s={time.perf_counter() - started:.3f}")
