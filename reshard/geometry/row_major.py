"""Row-major order: the runs of a box, the boxes of a run, and bands, the contiguous pieces in which a chunk is decoded."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from reshard.geometry.grid import Box, Cuts

MIN_RUN_BYTES = 1 << 10
"""Reading shorter rows of a raw chunk one by one costs more than reading the bytes between them as well."""


def run_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes of elements ``start:stop`` of a row-major array, in order.

    >>> [str(box) for box in run_boxes((4, 3), 2, 10)]
    ['[0:1, 2:3]', '[1:3, 0:3]', '[3:4, 0:1]']
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = row_bytes(shape, 1)[0]
    if not row:
        return
    first, before = divmod(start, row)
    last, after = divmod(stop, row)
    if before:
        end = after if first == last else row
        yield from _in_row(shape, first, before, end)
        first += 1
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last, *shape[1:]))
    if after and first <= last:
        yield from _in_row(shape, last, 0, after)


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> Iterator[Box]:
    for box in run_boxes(shape[1:], start, stop):
        yield Box((row, *box.start), (row + 1, *box.stop))


class Cut(Struct, frozen=True):
    """Bands of at most ``rows`` indices of dimension ``dim``, one index of each before it."""

    dim: int
    rows: int

    @classmethod
    def of(cls, shape: Sequence[int], most: int) -> Cut:
        """The widest bands of at most ``most`` elements, or of one element."""
        sizes = row_bytes(shape, 1)
        dim = next((d for d, size in enumerate(sizes) if size <= most), max(0, len(shape) - 1))
        return cls(dim, max(1, most // max(1, sizes[dim]))) if shape else cls(0, 1)

    def size(self, shape: Sequence[int]) -> int:
        """Elements of the largest band."""
        return min(self.rows, shape[self.dim]) * row_bytes(shape, 1)[self.dim] if shape else 1

    def bands(self, box: Box, edges: Sequence[Cuts]) -> Iterator[Box]:
        """The bands of ``box`` in row-major order; a band that crosses edges of chunks ends at the last of them."""
        if not box.shape:
            yield box
            return
        behind = (box.start[self.dim + 1 :], box.stop[self.dim + 1 :])
        # No list is made: a hostile tensor may have any number of bands.
        for lead in _places(box.start[: self.dim], box.stop[: self.dim]):
            for a, b in self._rows(box.start[self.dim], box.stop[self.dim], edges[self.dim]):
                yield Box((*lead, a, *behind[0]), (*(i + 1 for i in lead), b, *behind[1]))

    def _rows(self, start: int, end: int, edges: Cuts) -> Iterator[tuple[int, int]]:
        while start < end:
            stop = min(start + self.rows, end)
            edge = edges[bisect_right(edges, stop) - 1]
            stop = edge if start < edge else stop
            yield start, stop
            start = stop


def _places(start: Sequence[int], stop: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every place of a box in row-major order."""
    if not start:
        yield ()
        return
    for first in range(start[0], stop[0]):
        for rest in _places(start[1:], stop[1:]):
            yield (first, *rest)


def span(box: Box, around: Sequence[int]) -> tuple[int, int]:
    """The offset of a non-empty box's first element in an array of shape ``around``, and the elements from there to its last."""
    strides = row_bytes(around, 1)
    first = sum(a * s for a, s in zip(box.start, strides, strict=True))
    last = sum((b - 1) * s for b, s in zip(box.stop, strides, strict=True))
    return first, last - first + 1


def strided_span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements that an array with these strides spans, from its first to its last; 0 without elements.

    >>> strided_span((8, 4), (8, 1)), strided_span((3, 5), (0, 1)), strided_span((0, 5), (5, 1))
    (60, 5, 0)
    """
    if not all(shape):
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def pieces(box: Box, around: Sequence[int], most: int) -> Iterator[Box]:
    """``box`` in pieces that span at most ``most`` elements of the array around them, in row-major order.

    >>> [str(piece) for piece in pieces(Box((0, 0), (4, 2)), (4, 8), 16)]
    ['[0:2, 0:2]', '[2:4, 0:2]']
    """
    if not box.size:
        return
    if span(box, around)[1] <= most:
        yield box
        return
    dim = next(d for d, n in enumerate(box.shape) if n > 1)
    rows = max(1, most // row_bytes(around, 1)[dim])
    for start in range(box.start[dim], box.stop[dim], rows):
        stop = min(start + rows, box.stop[dim])
        part = Box(_with(box.start, dim, start), _with(box.stop, dim, stop))
        yield from pieces(part, around, most)


def _with(place: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*place[:dim], value, *place[dim + 1 :])


def run_elements(shape: Sequence[int], around: Sequence[int]) -> int:
    """The number of contiguous elements of a box of ``shape`` in a row-major array of shape ``around``."""
    run = 1
    for n, whole in zip(reversed(shape), reversed(around), strict=True):
        run *= n
        if n != whole:
            break
    return run


def run_offsets(box: Box, around: Sequence[int]) -> Iterator[int]:
    """The offset of each of these runs in that array, in elements.

    >>> list(run_offsets(Box((1, 2), (3, 4)), (4, 8)))
    [10, 18]
    """
    strides = row_bytes(around, 1)
    whole = len(around)
    while whole and box.shape[whole - 1] == around[whole - 1]:
        whole -= 1
    dims = max(0, whole - 1)
    base = sum(a * s for a, s in zip(box.start[dims:], strides[dims:], strict=True))
    leads = product(*map(range, box.start[:dims], box.stop[:dims]))
    return (base + sum(i * s for i, s in zip(lead, strides, strict=False)) for lead in leads)


def dense_runs(box: Box, around: Sequence[int], itemsize: int) -> Iterator[tuple[int, slice]]:
    """The offset in bytes of each of these runs in that array, and its bytes in a dense copy of the box.

    >>> list(dense_runs(Box((1, 2), (3, 4)), (4, 8), 2))
    [(20, slice(0, 4, None)), (36, slice(4, 8, None))]
    """
    nbytes = run_elements(box.shape, around) * itemsize
    for number, offset in enumerate(run_offsets(box, around)):
        yield offset * itemsize, slice(number * nbytes, (number + 1) * nbytes)


class Band(Struct, frozen=True):
    """Rows ``start:stop`` of dimension ``len(lead)`` at the fixed leading indices ``lead``.

    In later dimensions a band is as wide as the chunk. So chunks that differ only in later dimensions can be decoded in
    lock step.
    """

    lead: tuple[int, ...]
    start: int
    stop: int

    def box(self, shape: Sequence[int]) -> Box:
        """The band within a chunk of ``shape``, counted from the chunk's start."""
        if not shape:
            return Box((), ())
        behind = shape[len(self.lead) + 1 :]
        return Box(
            (*self.lead, self.start, *(0,) * len(behind)),
            (*[i + 1 for i in self.lead], self.stop, *behind),
        )


def bands(
    shape: Sequence[int],
    first_open_dim: int,
    row_bytes: Sequence[int],
    band_bytes: int,
    wanted: Box | None = None,
) -> Iterator[Band]:
    """The bands of chunks that share the leading ``shape``, in row-major order.

    ``row_bytes[d]`` is the size of one index of dimension ``d`` over all chunks. Only dimensions before
    ``first_open_dim`` are cut. A band has at most ``band_bytes``, or one row. ``wanted`` is a box in the chunks'
    coordinates; no band mixes rows inside and outside of it.
    """
    if not shape:
        yield Band((), 0, 1)
        return
    dim, rows = band_cut(first_open_dim, row_bytes, band_bytes)
    edges = {0, shape[dim]} | ({wanted.start[dim], wanted.stop[dim]} if wanted else set())
    spans = list(itertools.pairwise(sorted(edges)))
    for lead in itertools.product(*map(range, shape[:dim])):
        for first, last in spans:
            for start in range(first, last, rows):
                yield Band(lead, start, min(start + rows, last))


def band_capacity(
    shape: Sequence[int], first_open_dim: int, row_bytes: Sequence[int], band_bytes: int
) -> int:
    """Bytes of the largest of these bands."""
    if not shape:
        return row_bytes[0]
    dim, rows = band_cut(first_open_dim, row_bytes, band_bytes)
    return min(rows, shape[dim]) * row_bytes[dim]


def band_cut(first_open_dim: int, row_bytes: Sequence[int], band_bytes: int) -> tuple[int, int]:
    """The dimension along which bands are cut, and how many of its indices one band takes."""
    dim = next((d for d in range(first_open_dim) if row_bytes[d] <= band_bytes), first_open_dim - 1)
    return dim, max(1, band_bytes // max(1, row_bytes[dim]))


def row_bytes(shape: Sequence[int], itemsize: int) -> list[int]:
    """Bytes of one index of each dimension of a row-major chunk."""
    return [math.prod(shape[d + 1 :]) * itemsize for d in range(len(shape))]
