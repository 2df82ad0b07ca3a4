"""Region: the elements of a tensor that one buffer has. Buffer: its memory, and how pieces are copied into it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.buffers import aligned_empty
from reshard.engine.cast import cast_into
from reshard.engine.task import CastStats
from reshard.geometry.box import Box
from reshard.geometry.dtypes import element_dtype, numpy_dtype, storage_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


_NOTHING_LOST = CastStats()


class Region(Struct, frozen=True):
    """The elements of ``box``; along ``axis`` only every ``step``-th, from the start of the box.

    A shard of a 'mod' table has every k-th row; every other region is a plain box.
    """

    box: Box
    axis: int = 0
    step: int = 1

    @classmethod
    def rows(cls, shape: tuple[int, ...], axis: int, rows: range) -> Region:
        """The rows of a rising range along ``axis`` of a tensor of ``shape``."""
        stop = rows[-1] + 1 if rows else rows.start
        return cls(
            Box(
                tuple(rows.start if d == axis else 0 for d in range(len(shape))),
                tuple(stop if d == axis else n for d, n in enumerate(shape)),
            ),
            axis,
            rows.step,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return tuple(
            -(-n // self.step) if d == self.axis else n for d, n in enumerate(self.box.shape)
        )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def count_in(self, box: Box) -> int:
        """How many of its elements are in ``box``."""
        inside = self.box.intersect(box)
        if inside is None:
            return 0
        return math.prod(
            len(range(_first(self, inside), inside.stop[d], self.step)) if d == self.axis else n
            for d, n in enumerate(inside.shape)
        )


def _first(region: Region, inside: Box) -> int:
    """The first row of the region at or after the start of ``inside``."""
    start = region.box.start[region.axis]
    return start + -(-(inside.start[region.axis] - start) // region.step) * region.step


class Buffer:
    """Memory for one region, filled piece by piece from any thread; pieces must not overlap.

    Attributes:
        array: the region's elements.
    """

    def __init__(
        self,
        region: Region,
        source_dtype: str,
        dtype: str,
        *,
        saturate: bool = False,
        into: Array | None = None,
    ) -> None:
        """``into``: an array of the region's shape and of ``dtype`` to fill; None for new memory."""
        self.region = region
        self._is_cast = source_dtype != dtype
        self._saturate = saturate
        self.array: Array = _new_array(region.shape, dtype) if into is None else into
        self._elements: Array = self.array.view(element_dtype(dtype, is_cast=self._is_cast))

    def direct(self, box: Box) -> Bytes | None:
        """The bytes of exactly the elements of ``box``; None if they are not contiguous, or are cast."""
        region = self.region
        if self._is_cast or region.step != 1 or not region.box.contains(box):
            return None
        inside = self._elements[box.relative_to(region.box.start).slices]
        return inside.reshape(-1).view("u1") if inside.flags.c_contiguous else None

    def put(self, elements: Array, box: Box) -> CastStats:
        """Copies the elements of this region from ``elements``, which are those of ``box``."""
        inside = self.region.box.intersect(box)
        if inside is None or (self.region.step > 1 and not self.region.count_in(inside)):
            return _NOTHING_LOST
        taken, place = self._cut(elements, box, inside)
        if self._is_cast:
            return cast_into(place, taken, saturate=self._saturate)
        place[...] = taken
        return _NOTHING_LOST

    def _cut(self, elements: Array, box: Box, inside: Box) -> tuple[Array, Array]:
        region = self.region
        if region.step == 1:
            taken = elements[inside.relative_to(box.start).slices]
            return taken, self._elements[inside.relative_to(region.box.start).slices]
        first, axis = _first(region, inside), region.axis
        from_rows = slice(first - box.start[axis], inside.stop[axis] - box.start[axis], region.step)
        at = (first - region.box.start[axis]) // region.step
        count = len(range(first, inside.stop[axis], region.step))
        taken = elements[_at(inside.relative_to(box.start), axis, from_rows)]
        place = _at(inside.relative_to(region.box.start), axis, slice(at, at + count))
        return taken, self._elements[place]


def _new_array(shape: tuple[int, ...], dtype: str) -> Array:
    memory = aligned_empty(math.prod(shape) * storage_bytes(dtype))
    array: Array = memory.view(numpy_dtype(dtype)).reshape(shape)
    return array


def _at(box: Box, axis: int, rows: slice) -> tuple[Any, ...]:
    slices = list(box.slices)
    slices[axis] = rows
    return tuple(slices)
