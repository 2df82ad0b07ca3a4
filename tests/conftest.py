"""Eight simulated devices, set before anything imports jax, jax for Keras, and a terminal of known width."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["COLUMNS"] = "120"
