"""What the processes of ``group_member`` save and restore."""

from __future__ import annotations

from typing import Any

import numpy as np

from reshard import DeviceMesh, LayoutMap, ShardedVariable

SHAPE = (64, 4096)
"""1 MiB each; a device's share of a row is at least 1 KiB, so that only what is needed is read."""
TABLE = np.arange(13 * 4, dtype=np.float32).reshape(13, 4)

_AXES: dict[str, tuple[Any, ...]] = {
    "rows": ("data", None),
    "columns": (None, ("model", "data")),
    "both": ("model", "data"),
    "replicated": (),
}


def arrays() -> dict[str, np.ndarray]:
    """Random bits, so that no two elements are alike; equal in every process."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, (len(_AXES), *SHAPE), np.uint32)
    return dict(zip(_AXES, bits, strict=True))


def layouts(mesh: DeviceMesh) -> LayoutMap:
    """A layout for each of the arrays, over axes ``data`` and ``model``."""
    found = LayoutMap(mesh)
    for name, axes in _AXES.items():
        found[name] = axes
    return found


def table() -> ShardedVariable:
    """A table for 'mod' look-up, in five shards."""
    return ShardedVariable.split(TABLE, 5, "table", partition_strategy="mod")
