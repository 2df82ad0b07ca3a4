"""Proves that live arrays are the weights that were trained, by one root that is the same in every layout."""

import tempfile
from pathlib import Path

import numpy as np

import reshard

folder = Path(tempfile.mkdtemp())
tree = {"kernel": np.arange(64 * 48, dtype=np.float32).reshape(64, 48)}
reshard.save(folder / "train", tree)
root = reshard.identify(folder / "train", out=folder / "identity").root
print(root)

layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",)))
layout["kernel"] = ("model", None)
reshard.convert(folder / "train", folder / "serve", layout=layout)
assert reshard.identify(folder / "serve").root == root

served = reshard.restore(folder / "serve")
reshard.prove(served, folder / "identity")  # raises VerificationError if one bit differs
