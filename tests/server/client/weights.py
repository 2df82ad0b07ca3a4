"""The weights of the checkpoint that the server of these tests has."""

from __future__ import annotations

import numpy as np

WEIGHTS = np.random.default_rng(0).normal(size=(512, 256)).astype(np.float32)
