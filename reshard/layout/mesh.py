"""DeviceMesh and TensorLayout: named axes, and which of them splits each dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reshard.errors import LayoutError
from reshard.layout.grid import Grid

Axis = None | str | tuple[str, ...]
"""What splits one dimension: nothing, one mesh axis, or several (the first varies slowest)."""


@dataclass(frozen=True)
class DeviceMesh:
    """Named axes with sizes; abstract, no device is needed.

    >>> DeviceMesh((4, 2), ("data", "model")).axis_size("model")
    2
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    axis_types: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def axis_size(self, name: str) -> int:
        return self.shape[self.axis_names.index(name)]


@dataclass(frozen=True)
class TensorLayout:
    """Mesh axes per dimension; dimensions beyond ``axes`` are not split.

    >>> TensorLayout((None, "model"), DeviceMesh((8,), ("model",))).grid((4, 16)).parts
    (1, 8)
    """

    axes: tuple[Axis, ...]
    device_mesh: DeviceMesh | None = None

    def grid(self, shape: tuple[int, ...], name: str = "") -> Grid:
        """The boxes that the devices hold; an indivisible dimension is a LayoutError naming ``name``."""
        if self.device_mesh is None:
            raise LayoutError(
                f"the layout of {name!r} has no mesh, so its shards are unknown; give it one"
            )
        if len(self.axes) > len(shape):
            raise LayoutError(
                f"{name!r} has {len(shape)} dimensions (shape {list(shape)}), but its layout names "
                f"{len(self.axes)} ({list(self.axes)}); remove the surplus axes"
            )
        chunk = list(shape)
        for dim, axis in enumerate(self.axes):
            chunk[dim] = self._shard_size(name, shape, dim, axis)
        return Grid.regular(shape, chunk)

    def _shard_size(self, name: str, shape: tuple[int, ...], dim: int, axis: Axis) -> int:
        assert self.device_mesh is not None
        names = () if axis is None else (axis,) if isinstance(axis, str) else axis
        parts = math.prod(self.device_mesh.axis_size(n) for n in names)
        if shape[dim] % parts:
            raise LayoutError(
                f"{name!r} of shape {list(shape)}: dimension {dim} of size {shape[dim]} does not divide into "
                f"{parts} parts (mesh axes {', '.join(names)}); leave it unsplit (null) or choose axes whose "
                f"sizes multiply to a divisor of {shape[dim]}"
            )
        return shape[dim] // parts
