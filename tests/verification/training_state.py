"""A training state: parameters, an optimizer's state, a step and a key."""

from __future__ import annotations

import jax
import numpy as np
import optax

RNG = np.random.default_rng(5)
PARAMS = {
    "dense": {
        "kernel": RNG.normal(size=(64, 48)).astype(np.float32),
        "bias": RNG.normal(size=48).astype(np.float32),
    },
    "scale": np.float32([1.5, np.inf, -0.0, np.nan]),
}
STATE = {
    "params": PARAMS,
    "opt": optax.adam(1e-3).init(PARAMS),
    "step": 7,
    "key": jax.random.key(3),
}
