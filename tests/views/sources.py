"""A checkpoint of a (4, 2) mesh for views, and a map for it with every kind of piece."""

from __future__ import annotations

from pathlib import Path

MAP = {
    "map": [
        {"from": "params/layers/{i}/kernel", "to": "model.layers.{i}.weight", "shape": "e f -> f e"},
        {"from": "params/layers/{i}/bias", "to": "model.layers.{i}.bias", "add": 1},
        {"from": "params/embed", "to": "model.embed.weight", "shape": "v e -> v e", "pad": {"v": 144}},
        {"from": "params/gate_up", "to": ["gate.weight", "up.weight"], "shape": "[f | f] e -> f e, f e"},
        {"from": "params/scanned", "to": "model.layers.{l}.norm", "shape": "l e -> e"},
        {"from": ["params/q", "params/k"], "to": "qkv.weight", "shape": "(h d) e, (h d) e -> [h d | h d] e"},
    ]
}  # fmt: skip
SIZES = {"h": 4}


def save_source(path: Path) -> Path:
    """An Orbax checkpoint without digests, as stock Orbax writes it."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from tests.orbax_trees import mesh, save_pytree

    on = mesh((4, 2), ("data", "model"))
    random = np.random.default_rng(7)

    def made(*shape: int) -> jax.Array:
        axes = PartitionSpec(*("data", "model")[: len(shape)])
        return jax.device_put(random.standard_normal(shape, np.float32), NamedSharding(on, axes))

    layers = {str(i): {"kernel": made(64, 96), "bias": made(96)} for i in range(4)}
    tree = {
        "layers": layers, "embed": made(128, 64), "gate_up": made(32, 64), "scanned": made(4, 64), "q": made(32, 64), "k": made(32, 64),
    }  # fmt: skip
    save_pytree(path, {"params": tree})
    return path
