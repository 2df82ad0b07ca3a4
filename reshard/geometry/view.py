"""View: a tensor whose dimensions are split in order, so that reshapes, merges and splits are boxes too.

A dimension of 4096 seen as 32 × 128 keeps its elements where they are: element ``(h, d)`` of the view is element
``128 h + d``. A box of the tensor is a few boxes of its view, and the other way round::

    rows 100:300 of 4096 = 32 × 128      head 0, rows 100:128      head 1, all      head 2, rows 0:44
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.geometry.grid import Box, Cuts, Grid

_Range = tuple[int, int]
_Ranges = tuple[_Range, ...]


class View(Struct, frozen=True):
    """The sizes into which each dimension of a tensor is split.

    Attributes:
        sizes: per dimension of the tensor, slowest first; a single size for one that is not split.
    """

    sizes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not all(self.sizes):
            raise LayoutError(
                f"a view needs at least one size for each dimension, but is {list(map(list, self.sizes))}"
            )

    @classmethod
    def of(cls, shape: Sequence[int], *sizes: Sequence[int]) -> View:
        """The view that splits a tensor of ``shape`` so; LayoutError if the sizes do not multiply to the shape.

        >>> View.of((4096, 8), (32, 128), (8,)).shape
        (32, 128, 8)
        """
        found = cls(tuple(map(tuple, sizes)))
        if found.tensor_shape != tuple(shape):
            raise LayoutError(
                f"the sizes {list(map(list, sizes))} split a tensor of shape {list(found.tensor_shape)}, not one of {list(shape)}"
            )
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(itertools.chain(*self.sizes))

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(map(math.prod, self.sizes))

    def grid(self, grid: Grid) -> Grid:
        """The grid of the view for a grid of the tensor; each of its parts is a union of that grid's parts, and a box of the tensor.

        So a dimension that is split is cut between its rows only.
        """
        cuts = [_view_cuts(c, s) for c, s in zip(grid.cuts, self.sizes, strict=True)]
        return Grid(self.shape, tuple(itertools.chain(*cuts)))

    def touched(
        self, units: Grid, start: Sequence[int], chunks: Grid, padded: Sequence[int] | None
    ) -> tuple[int, int]:
        """The elements that boxes of the view touch in the tensor's chunks, over all boxes, and the most chunks that one box touches.

        Args:
            units: the boxes, counted from ``start`` in the view.
            padded: the shape of a stored chunk, if a chunk is touched as a whole; None if only a box's own elements are.

        It goes through the rows of each dimension that is split.
        """
        elements = most = 1
        first = 0
        for dim, sizes in enumerate(self.sizes):
            among = range(first, first + len(sizes))
            cuts = tuple(tuple(start[d] + cut for cut in units.cuts[d]) for d in among)
            each = None if padded is None else padded[dim]
            along, chunks_along = _touched(cuts, sizes, chunks.cuts[dim], each)
            elements, most, first = elements * along, most * chunks_along, first + len(sizes)
        return elements, most

    def around(self, box: Box) -> Box:
        """The smallest box of the tensor that holds a box of the view."""
        starts, stops = [], []
        for ranges, sizes in zip(self._by_dimension(box), self.sizes, strict=True):
            starts.append(_flat([a for a, _ in ranges], sizes))
            is_empty = any(a == b for a, b in ranges)
            stops.append(starts[-1] if is_empty else _flat([b - 1 for _, b in ranges], sizes) + 1)
        return Box(tuple(starts), tuple(stops))

    def parts(self, box: Box) -> Iterator[tuple[Box, Box]]:
        """The boxes of the view that make up a box of the tensor, each after the same box of the tensor.

        >>> [str(part) for _, part in View(((4, 8),)).parts(Box((4,), (20,)))]
        ['[0:1, 4:8]', '[1:2, 0:8]', '[2:3, 0:4]']
        """
        along = [
            list(_split(a, b, sizes))
            for a, b, sizes in zip(box.start, box.stop, self.sizes, strict=True)
        ]
        return map(_paired, itertools.product(*along))

    def meets(self, box: Box, others: Sequence[Box]) -> bool:
        """True if a box of the tensor shares elements with any of these boxes of the view."""
        return any(
            part.intersect(other) is not None for _, part in self.parts(box) for other in others
        )

    def places(self, box: Box) -> Iterator[tuple[Box, Box]]:
        """The boxes of the tensor that make up a box of the view, each before the same box of the view.

        >>> [str(place) for place, _ in View(((4, 8),)).places(Box((0, 2), (2, 4)))]
        ['[2:4]', '[10:12]']
        """
        along = [
            list(_joined(ranges, sizes))
            for ranges, sizes in zip(self._by_dimension(box), self.sizes, strict=True)
        ]
        return map(_paired, itertools.product(*along))

    def _by_dimension(self, box: Box) -> Iterator[list[_Range]]:
        ranges = iter(zip(box.start, box.stop, strict=True))
        return (list(itertools.islice(ranges, len(sizes))) for sizes in self.sizes)


def _paired(along: Sequence[tuple[_Range, _Ranges]]) -> tuple[Box, Box]:
    """The box of the tensor and that of its view, from their ranges in each dimension."""
    outer = [whole for whole, _ in along]
    inner = [part for _, parts in along for part in parts]
    return (
        Box(tuple([a for a, _ in outer]), tuple([b for _, b in outer])),
        Box(tuple([a for a, _ in inner]), tuple([b for _, b in inner])),
    )


def _flat(index: Sequence[int], sizes: Sequence[int]) -> int:
    flat = 0
    for i, size in zip(index, sizes, strict=True):
        flat = flat * size + i
    return flat


def _split(start: int, stop: int, sizes: Sequence[int]) -> Iterator[tuple[_Range, _Ranges]]:
    """``start:stop`` of a dimension in the fewest boxes of its view."""
    if len(sizes) == 1:
        yield (start, stop), ((start, stop),)
        return
    row = math.prod(sizes[1:])
    first, last = -(-start // row), stop // row if row else 0
    if start == stop or first > last:  # within one row, or nothing
        yield from _within(start, stop, row, sizes)
        return
    if start < first * row:
        yield from _within(start, first * row, row, sizes)
    if first < last:
        whole = tuple((0, size) for size in sizes[1:])
        yield (first * row, last * row), ((first, last), *whole)
    if last * row < stop:
        yield from _within(last * row, stop, row, sizes)


def _within(
    start: int, stop: int, row: int, sizes: Sequence[int]
) -> Iterator[tuple[_Range, _Ranges]]:
    """A range within one row, cut by the remaining sizes."""
    at = start // row if row else 0
    for (a, b), rest in _split(start - at * row, stop - at * row, sizes[1:]):
        yield (a + at * row, b + at * row), ((at, at + 1), *rest)


def _joined(ranges: Sequence[_Range], sizes: Sequence[int]) -> Iterator[tuple[_Range, _Ranges]]:
    """A box of the view of one dimension in the fewest ranges of that dimension."""
    (start, stop), rest = ranges[0], ranges[1:]
    row = math.prod(sizes[1:])
    if all(r == (0, size) for r, size in zip(rest, sizes[1:], strict=True)):
        yield (start * row, stop * row), tuple(ranges)
        return
    for at in range(start, stop):
        for (a, b), inner in _joined(rest, sizes[1:]):
            yield (a + at * row, b + at * row), ((at, at + 1), *inner)


@lru_cache(maxsize=4096)
def _touched(
    units: tuple[Cuts, ...], sizes: tuple[int, ...], cuts: Cuts, padded: int | None
) -> tuple[int, int]:
    """``View.touched`` for the view of one dimension."""
    elements = most = 0
    for ranges in itertools.product(*map(itertools.pairwise, units)):
        count = done = 0
        for (a, b), _ in _joined(ranges, sizes):
            first, last = max(done, bisect_right(cuts, a) - 1), bisect_left(cuts, b)
            count, done = count + max(0, last - first), max(done, last)
            elements += b - a if padded is None else max(0, last - first) * padded
        most = max(most, count)
    return elements, most


def _view_cuts(cuts: Cuts, sizes: Sequence[int]) -> list[Cuts]:
    """The cuts of one dimension, along each of the dimensions into which it is split."""
    if len(sizes) == 1:
        return [cuts]
    if sizes[0] == 1:
        return [(0, 1), *_view_cuts(cuts, sizes[1:])]
    row = math.prod(sizes[1:])
    if not row or not sizes[0]:
        return [(0, size) if size else (0,) for size in sizes]
    outer = tuple(cut // row for cut in cuts if cut % row == 0)
    return [outer, *((0, size) for size in sizes[1:])]
