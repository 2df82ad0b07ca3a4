"""A tree of layers, and a layout that splits it."""

from __future__ import annotations

from typing import Any

import numpy as np

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["x"]}]}


def tree(layers: int) -> dict[str, Any]:
    return {
        f"layer_{i}": {
            "kernel": np.arange(24, dtype="float32").reshape(4, 6) + i,
            "bias": np.arange(6, dtype="int32"),
        }
        for i in range(layers)
    }
