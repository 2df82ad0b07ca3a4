"""Saves live arrays of one mesh and restores them onto another; each device reads only its part."""

import os
import tempfile

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp

import reshard

run = tempfile.mkdtemp()
trained = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model"), jax.devices()))
trained["kernel"] = ("data", "model")
kernel = jnp.arange(2048.0 * 64).reshape(2048, 64)
state = {"kernel": reshard.distribute_tensor(kernel, trained["kernel"]), "step": 1000}
reshard.save(run, state, step=1000)  # a step that CheckpointManager(run) restores

serving = reshard.LayoutMap(reshard.DeviceMesh((2, 4), ("data", "model"), jax.devices()))
serving["kernel"] = (None, "model")
restored = reshard.restore(run, step=1000, layout=serving)
print(restored["kernel"].sharding)
assert (restored["kernel"] == kernel).all()
