"""Converts a checkpoint that was saved on a 4×2 mesh for a mesh of 8, without the devices of either."""

import tempfile
from pathlib import Path

import numpy as np

import reshard

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
tree = {
    "embed": rng.normal(size=(512, 64)).astype(np.float32),
    "mlp": {"kernel": rng.normal(size=(64, 256)).astype(np.float32)},
}
trained = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
trained["embed"] = ("data", None)
trained["kernel"] = (None, "model")
reshard.save(folder / "train", tree, layout=trained, step=1000)

serving = reshard.LayoutMap(reshard.DeviceMesh((8,), ("model",)))
serving["embed"] = ("model", None)
serving["kernel"] = (None, "model")

source, target = folder / "train" / "1000", folder / "serve"
plan = reshard.plan(source, target, layout=serving, max_memory="64MiB")
print(f"{plan.tasks} tasks, at most {plan.peak_bytes:,} bytes of buffers")
report = reshard.convert(source, target, layout=serving, max_memory="64MiB")
print(report)
assert reshard.verify(source, target).differences == 0
