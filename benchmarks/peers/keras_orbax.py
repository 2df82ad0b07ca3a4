"""What people run from Keras' weights to Orbax, and weights to begin with.

``keras_orbax make FILE MIB``: Keras' ``save_weights`` of a model of dense layers.
``keras_orbax to-orbax FILE DST``: h5py reads every array, then Orbax's StandardCheckpointer saves them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

WIDTH = 2048
"""A kernel has 16 MiB in float32."""


def make(file: Path, mib: int) -> None:
    """As many layers as fill ``mib``."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    layers = [keras.layers.Dense(WIDTH, use_bias=False) for _ in range(max(1, mib // 16))]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.save_weights(file)


def to_orbax(file: Path, target: Path) -> None:
    """Names are the paths in the file."""
    import h5py
    import orbax.checkpoint as ocp

    found: dict[str, Any] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(file) as opened:
        opened.visititems(take)
    with ocp.StandardCheckpointer() as writer:
        writer.save(target.absolute(), found)


if __name__ == "__main__":
    what, first, second = sys.argv[1:]
    if what == "make":
        make(Path(first), int(second))
    else:
        to_orbax(Path(first), Path(second))
