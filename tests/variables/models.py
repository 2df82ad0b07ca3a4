"""Meshes, maps and models that the tests of lazy variables share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from reshard import DeviceMesh, LayoutMap
from reshard.variables import Variable


def mesh() -> DeviceMesh:
    return DeviceMesh((2, 4), ("data", "model"), jax.devices())


def layouts(**rules: object) -> LayoutMap:
    """Regular expressions in the manner of dtensor: matched at the beginning, the first counts."""
    made = LayoutMap(mesh(), match="match", ambiguous="first")
    for key, axes in rules.items():
        made[key] = axes
    return made


class Dense:
    def __init__(self, n_in: int, n_out: int, seed: int) -> None:
        normal = jax.nn.initializers.normal(0.02)
        self.kernel = Variable(normal, (n_in, n_out), key=jax.random.key(seed))
        self.bias = Variable(jnp.zeros, (n_out,))


class Block:
    def __init__(self) -> None:
        self.a = Dense(8, 8, 3)
        self.lst = [Dense(8, 16, 4), Dense(16, 8, 5)]


class Model:
    """Dense layers, a block of them, a table made by numpy, a random key and a tied kernel."""

    def __init__(self) -> None:
        self.d1 = Dense(16, 8, 1)
        self.d2 = Dense(8, 8, 2)
        self.blk = Block()
        self.table = Variable(np.arange(64.0).reshape(16, 4))
        self.rng = Variable(jax.random.key(7))
        self.tied = self.d1.kernel


PATHS = [
    "d1.kernel", "d1.bias", "d2.kernel", "d2.bias", "blk.a.kernel", "blk.a.bias", "blk.lst.0.kernel",
    "blk.lst.0.bias", "blk.lst.1.kernel", "blk.lst.1.bias", "table", "rng",
]  # fmt: skip
