"""The picture of a tensor's shards and their devices, as data for the terminal and for pages.

The last split dimension runs across, all other split dimensions run down together::

    [data, model] on a mesh (data=2, model=2)      [null, model] on a mesh (model=4)
    ┌───────┬───────┐                              ┌───┬───┬───┬───┐
    │   0   │   1   │                              │   │   │   │   │
    ├───────┼───────┤                              │ 0 │ 1 │ 2 │ 3 │
    │   2   │   3   │                              │   │   │   │   │
    └───────┴───────┘                              └───┴───┴───┴───┘

Only cells that are shown are computed, so a mesh of a million devices costs no more than one of eight.
"""

from __future__ import annotations

import itertools
import math

from msgspec import Struct

from reshard.geometry.grid import row_major_number
from reshard.layout.axes import axis_names, used_axes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout

LISTED = 4
"""Devices of one shard that are named one by one."""


class Holders(Struct, frozen=True):
    """The devices of one shard: the first few, the last one, and their number."""

    first: tuple[int, ...]
    last: int
    count: int


class PictureCell(Struct, frozen=True):
    """One box: its texts from the longest to the shortest, and the device that gives its colour, None in a gap."""

    labels: tuple[str, ...]
    device: int | None = None


class ShardPicture(Struct, frozen=True):
    """A tensor in so many parts along each dimension; without a layout over a mesh each shard is its own device.

    Shards and devices are numbered row-major, over the parts and over the mesh.

    >>> ShardPicture((1, 4), TensorLayout((None, "model"), DeviceMesh((2, 4), ("data", "model")))).holders((0, 3)).first
    (3, 7)
    """

    parts: tuple[int, ...]
    layout: TensorLayout | None = None

    @property
    def count(self) -> int:
        """The number of shards."""
        return math.prod(self.parts)

    @property
    def _mesh(self) -> DeviceMesh | None:
        return None if self.layout is None else self.layout.device_mesh

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The shape of the mesh; one row without a mesh."""
        return (self.count,) if self._mesh is None else self._mesh.shape

    def coordinate(self, device: int) -> dict[str, int]:
        """The place of a device on each axis of the mesh."""
        at = {}
        if self._mesh is not None:
            for name, size in zip(self._mesh.axis_names[::-1], self._mesh.shape[::-1], strict=True):
                device, at[name] = divmod(device, size)
        return dict(reversed(at.items()))

    def shard(self, device: int) -> int:
        """The number of the shard that a device holds."""
        if self.layout is None or self._mesh is None:
            return device
        at, names = self.coordinate(device), used_axes(self.layout.axes)
        return row_major_number([at[n] for n in names], [self._mesh.axis_size(n) for n in names])

    def holders(self, index: tuple[int, ...]) -> Holders:
        """The devices of the shard at ``index``."""
        mesh = self._mesh
        if self.layout is None or mesh is None:
            number = row_major_number(index, self.parts)
            return Holders((number,), number, 1)
        at: dict[str, int] = {}
        for axis, place in zip(self.layout.axes, index, strict=False):
            for name in reversed(axis_names(axis)):
                place, at[name] = divmod(place, mesh.axis_size(name))
        ranges = [
            range(at[name], at[name] + 1) if name in at else range(size)
            for name, size in zip(mesh.axis_names, mesh.shape, strict=True)
        ]
        first = itertools.islice(itertools.product(*ranges), LISTED)
        return Holders(
            tuple(row_major_number(each, mesh.shape) for each in first),
            row_major_number([each[-1] for each in ranges], mesh.shape),
            math.prod(map(len, ranges)),
        )

    @property
    def _across(self) -> int | None:
        """The dimension that runs from left to right."""
        split = [d for d, parts in enumerate(self.parts) if parts > 1]
        is_row = len(split) == 1 and split[0] != len(self.parts) - 1
        return split[-1] if split and not is_row else None

    @property
    def columns(self) -> int:
        return 1 if self._across is None else self.parts[self._across]

    @property
    def rows(self) -> int:
        return self.count // self.columns if self.count else 0

    def cells(self, most_rows: int, most_columns: int) -> list[list[PictureCell]]:
        """The rows of the picture; where there are more, the first ones, a gap and the last."""
        columns = _places(self.columns, most_columns)
        return [[self._cell(row, c) for c in columns] for row in _places(self.rows, most_rows)]

    def _cell(self, row: int | None, column: int | None) -> PictureCell:
        if row is None or column is None:
            return PictureCell(("…" if row is not None or column is None else "⋮",))
        index = [0] * len(self.parts)
        for dim in reversed(range(len(index))):
            if dim == self._across:
                index[dim] = column
            else:
                row, index[dim] = divmod(row, self.parts[dim])
        found = self.holders(tuple(index))
        first = str(found.first[0])
        if found.count == 1:
            return PictureCell((first,), found.first[0])
        listed = (",".join(map(str, found.first)),) if found.count <= LISTED else ()
        labels = (*listed, f"{first}…{found.last} ×{found.count:,}", f"{first}…")
        return PictureCell(labels, found.first[0])


def _places(count: int, most: int) -> list[int | None]:
    """All places, or the first ones, None for a gap and the last."""
    return [*range(count)] if count <= most else [*range(most - 2), None, count - 1]
