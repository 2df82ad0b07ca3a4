"""A tensor of 8 MiB, which the server of these tests stores."""

from __future__ import annotations

import numpy as np

LARGE = np.random.default_rng(0).normal(size=(1024, 2048)).astype(np.float32)
