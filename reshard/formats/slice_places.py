"""SlicePlaces: where a tensor is stored whose slices lie contiguously in shared files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from msgspec import Struct

from reshard.formats.base import TargetTensor
from reshard.formats.file_map import Place
from reshard.geometry.grid import Grid, Index


class SlicePlaces(Struct, frozen=True):
    """The slices of a tensor of a target, row-major each.

    Attributes:
        starts: per slice, the place of its first byte in every file that has it.
    """

    tensor: TargetTensor
    slices: Grid
    starts: Mapping[Index, tuple[Place, ...]]

    def places(self, index: Index) -> tuple[Place, ...]:
        """The places of a chunk: the storage grid cuts each slice into contiguous parts."""
        spec = self.tensor.spec
        start = spec.storage.box(index).start
        found = tuple(
            bisect_right(c, at) - 1 for c, at in zip(self.slices.cuts, start, strict=True)
        )
        box = self.slices.box(found)
        offset = 0
        for at, first, size in zip(start, box.start, box.shape, strict=True):
            offset = offset * size + at - first
        offset *= spec.itemsize
        return tuple(Place(p.file, p.start + offset) for p in self.starts[found])
