"""Stands for a training job: eight simulated devices, the last steps of Adam, one Orbax checkpoint.

A program of its own (``python -m reshard.demo.training_job RUN``): it knows nothing of reshard. RUN is
the folder of a ``CheckpointManager``, which gets step 1000.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh

STEPS = range(998, 1000)
"""Trained before the checkpoint is saved; the demo does not wait for those before."""


def trained_state(mesh: Mesh) -> dict[str, Any]:
    """Params, Adam's state, step and PRNG key after a few steps, all of it sharded over the mesh."""
    import jax
    import optax

    from reshard.demo.transformer import LENGTH, VOCABULARY, initial_params, loss

    optimizer = optax.adam(1e-3)
    params = _placed(initial_params(jax.random.key(0)), mesh)
    state = {"params": params, "opt_state": _placed(optimizer.init(params), mesh)}

    @jax.jit
    def train(state: dict[str, Any], tokens: jax.Array) -> dict[str, Any]:
        gradients = jax.grad(loss)(state["params"], tokens)
        updates, opt_state = optimizer.update(gradients, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}

    for step in STEPS:
        tokens = jax.random.randint(jax.random.key(step), (8, LENGTH), 0, VOCABULARY)
        state = _placed(train(state, tokens), mesh)
    rest = {"step": jax.numpy.int32(STEPS.stop), "rng": jax.random.key(42)}
    return {**state, **_placed(rest, mesh)}


def _placed(tree: Any, mesh: Mesh) -> Any:
    import jax

    from reshard.demo.transformer import sharding_of

    def place(path: Any, leaf: Any) -> Any:
        return jax.device_put(leaf, sharding_of(jax.tree_util.keystr(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def main(run: str) -> None:
    """Train on a 4×2 mesh, save, and show how one kernel lies on the devices."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    state = trained_state(mesh)
    with ocp.CheckpointManager(Path(run).absolute()) as manager:
        manager.save(STEPS.stop, args=ocp.args.StandardSave(state))
    leaves = jax.tree.leaves(state)
    print(
        f"saved {len(leaves)} arrays, {sum(x.nbytes for x in leaves) / 2**20:.1f} MiB, on 4×2 devices"
    )
    print("params/layers/0/attention/query/kernel lies on them so:")
    jax.debug.visualize_array_sharding(state["params"]["layers"][0]["attention"]["query"]["kernel"])


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(sys.argv[1])
