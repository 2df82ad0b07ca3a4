"""Stands for a serving job: stock Orbax restores the converted checkpoint on eight devices.

A program of its own (``python -m reshard.demo.serving_job TRAINED SERVED``): it knows nothing of
reshard. Both are folders of a ``CheckpointManager``. It restores the latest step of each, and compares
every array bit by bit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def restored(run: str) -> Any:
    """The whole tree of the latest step as the checkpoint itself describes it, shardings included."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(Path(run).absolute()) as manager:
        return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())


def difference(a: Any, b: Any) -> str | None:
    """The difference of two arrays; None if dtype, shape and every bit agree."""
    import jax
    import numpy as np

    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    if jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    same = np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return None if same else "its bits changed"


def compare(trained: Any, served: Any) -> list[str]:
    """One line for each array that differs, or for trees that have different leaves."""
    import jax

    before, after = (jax.tree_util.tree_leaves_with_path(t) for t in (trained, served))
    if [path for path, _ in before] != [path for path, _ in after]:
        return [f"the trees differ: {len(before)} leaves became {len(after)}"]
    pairs = zip(before, after, strict=True)
    found = ((jax.tree_util.keystr(path), difference(a, b)) for (path, a), (_, b) in pairs)
    return [f"{path}: {what}" for path, what in found if what]


def main(trained_run: str, served_run: str) -> None:
    """Restore both, compare, and show how one kernel lies on the devices now."""
    import jax

    served = restored(served_run)
    complaints = compare(restored(trained_run), served)
    if complaints:
        sys.exit("\n".join(complaints))
    leaves = jax.tree.leaves(served)
    elsewhere = [leaf for leaf in leaves if dict(leaf.sharding.mesh.shape) != {"model": 8}]
    if elsewhere:
        sys.exit(f"{len(elsewhere)} arrays are not on the mesh of 8: {elsewhere[0].sharding}")
    print(
        f"stock Orbax restored {len(leaves)} arrays on 8 devices; every bit is as training saved it"
    )
    print("params/layers/0/attention/query/kernel lies on them so:")
    jax.debug.visualize_array_sharding(
        served["params"]["layers"][0]["attention"]["query"]["kernel"]
    )


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(sys.argv[1], sys.argv[2])
