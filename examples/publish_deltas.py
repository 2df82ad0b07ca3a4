"""Hands over what changed from one version of the weights to the next, and makes the full version of it."""

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import reshard

folder = Path(tempfile.mkdtemp())
old = {"weight": np.ones((1024, 256), np.float32), "bias": np.zeros(256, np.float32)}
new = {"weight": old["weight"].copy(), "bias": old["bias"]}
new["weight"][17] *= 2
for name, tensors in (("v0", old), ("v1", new)):
    (folder / name).mkdir()
    save_file(tensors, folder / name / "model.safetensors")

version = folder / "published" / "weight_v000001"
delta = reshard.delta(folder / "v0", folder / "v1", version)
print(delta)
assert list(delta.tensors) == ["weight"]

reshard.apply(folder / "v0", [version], folder / "served")
assert reshard.verify(folder / "v1", folder / "served").differences == 0
