"""Makes the benchmark's source: a checkpoint that stock Orbax saved from a (4, 2) mesh.

``python -m benchmarks.trees.make_tree --size small|full|<GiB> DST``, or ``--many-small 100000 DST``.
Weights are normally distributed, so that they compress as weights do. Layers beyond the twelfth
repeat the first twelve: the file is as large as asked for, the memory to make it is not. Small
tensors are saved as host arrays of one chunk each, because to save 100,000 of them from eight
devices takes Orbax more than 14 GiB.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.trees.sizes import LARGEST_DISTINCT_LAYERS, Tensor, TreeSize

CONCURRENT_GB = 2
"""Bound on what Orbax holds in flight while it saves; the bytes on disk do not depend on it."""


def make_tree(size: TreeSize, target: Path) -> None:
    """Save a tree of this size to ``target`` with stock Orbax."""
    import benchmarks.peers.devices  # noqa: F401  (sets jax up)

    import orbax.checkpoint as ocp  # isort: skip

    tree = live_tree(size)
    with ocp.StandardCheckpointer(save_concurrent_gb=CONCURRENT_GB) as checkpointer:
        checkpointer.save(target.absolute(), tree)


def live_tree(size: TreeSize) -> dict[str, Any]:
    """The tree on the source mesh; repeated layers share their arrays."""
    return _nested({t.path: array for t, array in _arrays(size)})


def _arrays(size: TreeSize) -> Iterator[tuple[Tensor, Any]]:
    seen: dict[object, Any] = {}
    for number, tensor in enumerate(size.tensors()):
        key = _content(tensor, number)
        if key not in seen:
            seen[key] = _array(tensor, number)
        yield tensor, seen[key]


def _content(tensor: Tensor, number: int) -> object:
    """What distinguishes a tensor's values: repeated layers share theirs."""
    if tensor.path[0] != "layers":
        return number
    return int(tensor.path[1]) % LARGEST_DISTINCT_LAYERS, tensor.path[2:]


def _array(tensor: Tensor, seed: int) -> Any:
    import jax
    import numpy as np

    from benchmarks.peers.devices import source_sharding

    values = np.random.default_rng(seed).standard_normal(tensor.shape, np.float32) * 0.02
    if tensor.path[0] == "scales":
        return values
    return jax.device_put(values.astype(jax.numpy.dtype(tensor.dtype)), source_sharding())


def _nested(flat: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return tree


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the benchmark's source checkpoint.")
    parser.add_argument("target", type=Path, help="where to write it; must not exist")
    parser.add_argument("--size", default="small", help="tiny, small, full or a number of GiB")
    parser.add_argument(
        "--many-small", type=int, default=0, help="this many tensors of 4 KiB instead"
    )
    return parser.parse_args()


def main() -> None:
    """Parse the command line and make the tree."""
    arguments = _arguments()
    small = arguments.many_small
    make_tree(TreeSize(small=small) if small else TreeSize.named(arguments.size), arguments.target)


if __name__ == "__main__":
    main()
