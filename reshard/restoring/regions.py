"""Region: the elements of a tensor that one buffer has. Buffer: its memory, into which pieces are copied.

The regions that share chunks are one group, so that each chunk is read once. Along each dimension overlapping regions are
merged, and the tensor is split at every chunk edge that no merged region crosses::

    chunks    |   :   |   :   |       two regions per chunk, so every chunk edge splits:
    regions   | a | b | c | d |       group (a, b) reads the first chunk, (c, d) the second
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from reshard.engine.buffers import aligned_empty
from reshard.engine.cast import cast_into
from reshard.engine.task import CastStats
from reshard.errors import StorageError
from reshard.geometry.dtypes import element_dtype, numpy_dtype, storage_bytes
from reshard.geometry.grid import Box, Cuts, Grid, Index
from reshard.geometry.sizes import format_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]

_NOTHING_LOST = CastStats()


class Region(Struct, frozen=True, dict=True):
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

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        shape = self.box.shape
        if self.step == 1:
            return shape
        return tuple(-(-n // self.step) if d == self.axis else n for d, n in enumerate(shape))

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    def count_in(self, box: Box) -> int:
        """Number of its elements in ``box``."""
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

    @property
    def box(self) -> Box:
        return self.region.box

    def count_in(self, box: Box) -> int:
        """Number of elements of ``box`` that it takes."""
        return self.region.count_in(box)

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
    nbytes = math.prod(shape) * storage_bytes(dtype)
    try:
        memory = aligned_empty(nbytes)
    except MemoryError as error:
        raise StorageError(
            f"the system refused {format_bytes(nbytes)} of memory for a part of a tensor ({error}); restore "
            "fewer tensors (select), or on more hosts"
        ) from error
    array: Array = memory.view(numpy_dtype(dtype)).reshape(shape)
    return array


def _at(box: Box, axis: int, rows: slice) -> tuple[Any, ...]:
    slices = list(box.slices)
    slices[axis] = rows
    return tuple(slices)


ReadGroup: TypeAlias = tuple[int, ...]
"""The numbers of regions that are filled from the same chunks."""


def read_groups(regions: Sequence[Region], storage: Grid) -> list[ReadGroup]:
    """Groups of regions that share no chunk, in row-major order; each empty region is a group of its own."""
    filled = [region.box for region in regions if region.size]
    cuts = [
        _splitting_edges([(b.start[d], b.stop[d]) for b in filled], stored)
        for d, stored in enumerate(storage.cuts)
    ]
    grouped: dict[Index, list[int]] = defaultdict(list)
    empty: list[ReadGroup] = []
    for number, region in enumerate(regions):
        if not region.size:
            empty.append((number,))
            continue
        place = tuple(bisect_right(c, a) - 1 for c, a in zip(cuts, region.box.start, strict=True))
        grouped[place].append(number)
    return [*(tuple(grouped[i]) for i in sorted(grouped)), *empty]


def split_group(group: ReadGroup, sizes: Sequence[int], most_bytes: int) -> Iterator[ReadGroup]:
    """The group in parts of at most ``most_bytes``, each of at least one region; ``sizes`` are the sizes of all
    regions."""
    taken: list[int] = []
    taken_bytes = 0
    for number in group:
        if taken and taken_bytes + sizes[number] > most_bytes:
            yield tuple(taken)
            taken, taken_bytes = [], 0
        taken.append(number)
        taken_bytes += sizes[number]
    yield tuple(taken)


class RegionIndex:
    """Finds the regions of a group that overlap a box, by one bisection per dimension."""

    def __init__(self, regions: Sequence[Region], group: ReadGroup, shape: tuple[int, ...]) -> None:
        filled = [(n, regions[n].box) for n in group if regions[n].size]
        cuts = [
            tuple(
                sorted({0, size, *(b.start[d] for _, b in filled), *(b.stop[d] for _, b in filled)})
            )
            for d, size in enumerate(shape)
        ]
        self._grid = Grid(shape, tuple(cuts))
        self._cells: dict[Index, list[int]] = defaultdict(list)
        for number, box in filled:
            for index in itertools.product(*self._grid.overlapping(box)):
                self._cells[index].append(number)

    def touching(self, box: Box) -> list[int]:
        """Numbers of the regions whose boxes overlap ``box``, in order."""
        cells = itertools.product(*self._grid.overlapping(box))
        return sorted({n for index in cells for n in self._cells.get(index, ())})


def chunk_indices(regions: Sequence[Region], group: ReadGroup, storage: Grid) -> list[Index]:
    """The chunks that the group's regions need, in row-major order."""
    found: set[Index] = set()
    for number in group:
        if regions[number].size:
            found.update(itertools.product(*storage.overlapping(regions[number].box)))
    return sorted(found)


def _splitting_edges(spans: Sequence[tuple[int, int]], stored: Cuts) -> Cuts:
    """The chunk edges of one dimension that no span crosses."""
    merged: list[list[int]] = []
    for start, stop in sorted(set(spans)):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    starts = [start for start, _ in merged]
    return tuple(c for c in stored if not _crosses(merged, bisect_left(starts, c) - 1, c))


def _crosses(merged: Sequence[Sequence[int]], last: int, edge: int) -> bool:
    return last >= 0 and merged[last][1] > edge
