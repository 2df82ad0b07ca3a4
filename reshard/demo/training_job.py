"""Stands for a training job: eight simulated devices, a transformer, the last steps of Adam, one Orbax checkpoint.

A program of its own (``python -m reshard.demo.training_job RUN``): it knows nothing of reshard. RUN is
the folder of a ``CheckpointManager``, which gets step 1000.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding


VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 1024, 256, 8, 2, 16

Params = dict[str, Any]


def initial_params(key: jax.Array) -> Params:
    """Float32 embedding and norms, bfloat16 kernels."""
    import jax
    import jax.numpy as jnp

    def kernel(number: int, rows: int, columns: int) -> Params:
        values = jax.random.normal(jax.random.fold_in(key, number), (rows, columns))
        return {"kernel": (values * rows**-0.5).astype(jnp.bfloat16)}

    def layer(number: int) -> Params:
        first = 10 * (number + 1)
        attention = ("query", "key", "value", "out")
        return {
            "norm": {"scale": jnp.ones(WIDTH)},
            "attention": {n: kernel(first + i, WIDTH, WIDTH) for i, n in enumerate(attention)},
            "mlp": {
                "up": kernel(first + 4, WIDTH, 4 * WIDTH),
                "down": kernel(first + 5, 4 * WIDTH, WIDTH),
            },
        }

    embedding = jax.random.normal(key, (VOCABULARY, WIDTH)) * WIDTH**-0.5
    return {"embedding": embedding, "layers": [layer(n) for n in range(LAYERS)]}


def loss(params: Params, tokens: jax.Array) -> jax.Array:
    """Mean cross entropy of predicting each token from those before it."""
    import jax
    import jax.numpy as jnp

    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = x + _attention(layer["attention"], _norm(x, layer["norm"]))
        x = x + _mlp(layer["mlp"], _norm(x, layer["norm"]))
    logits = jax.nn.log_softmax(x @ params["embedding"].T)
    chosen = jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], axis=-1)
    return -chosen.mean()


def sharding_of(path: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """The sharding of an array in training: every matrix over both mesh axes, all else replicated."""
    from jax.sharding import NamedSharding, PartitionSpec

    matrix = len(shape) == 2
    if matrix and "embedding" in path:
        return NamedSharding(mesh, PartitionSpec(("data", "model"), None))
    return NamedSharding(mesh, PartitionSpec("data", "model") if matrix else PartitionSpec())


def _norm(x: jax.Array, params: Params) -> jax.Array:
    import jax.numpy as jnp

    variance = jnp.square(x).mean(axis=-1, keepdims=True)
    scaled: jax.Array = x * (variance + 1e-6) ** -0.5 * params["scale"]
    return scaled


def _attention(params: Params, x: jax.Array) -> jax.Array:
    import jax
    import jax.numpy as jnp

    batch, length, _ = x.shape
    query, key, value = (
        (x @ params[n]["kernel"]).reshape(batch, length, HEADS, -1)
        for n in ("query", "key", "value")
    )
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    out: jax.Array = mixed.reshape(batch, length, -1) @ params["out"]["kernel"]
    return out.astype(jnp.float32)


def _mlp(params: Params, x: jax.Array) -> jax.Array:
    import jax

    out: jax.Array = jax.nn.gelu(x @ params["up"]["kernel"]) @ params["down"]["kernel"]
    return out


STEPS = range(998, 1000)
"""Trained before the checkpoint is saved; the demo does not wait for those before."""


def trained_state(mesh: Mesh) -> dict[str, Any]:
    """Params, Adam's state, step and PRNG key after a few steps, all of it sharded over the mesh."""
    import jax
    import optax

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
