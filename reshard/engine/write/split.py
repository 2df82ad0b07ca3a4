"""Splits a band into the pieces of target chunks: where each lies in the band and in its chunk.

A band differs from the one before in one dimension only, so what was found for a dimension is kept:
the pieces of a band are then the product of a few short lists.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reshard.engine.task import Task
from reshard.geometry.box import Box
from reshard.planning.placement import inverse


class Piece(NamedTuple):
    """The part of a band that falls into one target chunk.

    Attributes:
        number: position of the chunk among the task's targets.
        in_band: index of the piece in the band, in the source's axis order.
        start: where it begins within the stored chunk, in the target's axis order.
        shape: its shape, in the target's axis order.
    """

    number: int
    in_band: tuple[slice, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


class _Segment(NamedTuple):
    """One dimension of a piece: the chunk's share of its number, the range in the band, the start in the chunk."""

    number: int
    in_band: slice
    start: int
    size: int


class Cutter:
    """Cuts the bands of one task; boxes are in the placement's coordinates."""

    def __init__(self, task: Task) -> None:
        grid = task.target_grid
        self._cuts = [
            [c + origin for c in cuts]
            for cuts, origin in zip(grid.cuts, task.unit.start, strict=True)
        ]
        self._strides = [math.prod(grid.parts[d + 1 :]) for d in range(len(grid.parts))]
        self._chunk_starts = _chunk_starts(task)
        self._order = task.placement.axis_order
        self._known: list[dict[tuple[int, int], list[_Segment]]] = [{} for _ in grid.parts]

    def pieces(self, box: Box) -> Iterator[Piece]:
        """The pieces of the band that lies at ``box``, in row-major order of the chunks."""
        along = [
            self._along(d, a, b) for d, (a, b) in enumerate(zip(box.start, box.stop, strict=True))
        ]
        order = self._order
        for parts in itertools.product(*along):
            yield Piece(
                sum([p.number for p in parts]),
                tuple([p.in_band for p in parts]),
                tuple([parts[d].start for d in order]),
                tuple([parts[d].size for d in order]),
            )

    def _along(self, dim: int, start: int, stop: int) -> list[_Segment]:
        known = self._known[dim]
        if (start, stop) not in known:
            if len(known) > 64:
                known.clear()
            known[start, stop] = list(self._segments(dim, start, stop))
        return known[start, stop]

    def _segments(self, dim: int, start: int, stop: int) -> Iterator[_Segment]:
        cuts = self._cuts[dim]
        for part in range(bisect_right(cuts, start) - 1, bisect_left(cuts, stop)):
            first, last = max(cuts[part], start), min(cuts[part + 1], stop)
            in_chunk = first - self._chunk_starts[dim][part]
            in_band = slice(first - start, last - start)
            yield _Segment(part * self._strides[dim], in_band, in_chunk, last - first)


def _chunk_starts(task: Task) -> list[list[int]]:
    """Per dimension of the placement, where each part's target chunk begins, in its coordinates."""
    parts = task.target_grid.parts
    strides = [math.prod(parts[d + 1 :]) for d in range(len(parts))]
    turned = inverse(task.placement.axis_order)
    return [
        [
            task.targets[i * strides[d]].box.start[turned[d]]
            - task.placement.target_box.start[turned[d]]
            for i in range(parts[d])
        ]
        for d in range(len(parts))
    ]


def runs(
    start: Sequence[int], shape: Sequence[int], stored: Sequence[int], itemsize: int
) -> list[tuple[int, int]]:
    """Where a box of a row-major chunk lies: offset and length in bytes of each contiguous run.

    >>> runs((2, 0), (2, 8), (8, 8), 4), runs((2, 4), (2, 4), (8, 8), 4)
    ([(64, 64)], [(80, 16), (112, 16)])
    """
    if shape[1:] == stored[1:]:
        row = math.prod(stored[1:]) * itemsize
        return [(start[0] * row, shape[0] * row)] if shape else [(0, row)]
    inner = len(shape) - 1
    run = itemsize
    while inner > 0 and shape[inner] == stored[inner]:
        run *= shape[inner]
        inner -= 1
    run *= math.prod(shape[: inner + 1][-1:])
    stride, offsets = run_stride(stored, inner, itemsize), [0]
    for dim in range(inner, -1, -1):
        first = start[dim] * stride
        steps = [first] if dim == inner else range(first, first + shape[dim] * stride, stride)
        offsets = [step + offset for step in steps for offset in offsets]
        stride *= stored[dim]
    return [(offset, run) for offset in offsets]


def run_stride(stored: Sequence[int], dim: int, itemsize: int) -> int:
    """Bytes from one index of ``dim`` to the next."""
    return math.prod(stored[dim + 1 :]) * itemsize
