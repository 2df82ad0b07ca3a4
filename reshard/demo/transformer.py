"""A transformer small enough to train for a moment: parameters, loss, and how they are sharded."""

from __future__ import annotations

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
    """How training shards an array: every matrix over both mesh axes, all else replicated."""
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
