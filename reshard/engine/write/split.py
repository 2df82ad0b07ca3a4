"""Cuts a band into slots of target chunks: the place of each part in the band and in its chunk.

A band differs from the one before in one dimension only, so that the cuts of each dimension are kept:
the slots of a band are then the product of a few short lists.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from reshard.engine.task import Unit
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece


class Slot(NamedTuple):
    """The part of a band that falls into one target chunk.

    Attributes:
        number: position of the chunk among the unit's.
        in_band: index of the part in the band, in the axis order of the target's view.
        start: its first index within the stored chunk.
        shape: its shape in the chunk.
    """

    number: int
    in_band: tuple[slice, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


class _Segment(NamedTuple):
    """One dimension of a slot: the chunk's share of its number, the range in the box, the start in the chunk."""

    number: int
    in_box: slice
    start: int
    size: int


class ChunkSlots:
    """Cuts boxes of the target of one unit at the edges of its chunks."""

    def __init__(self, unit: Unit) -> None:
        grid = unit.grid
        self._cuts = [
            [c + origin for c in cuts]
            for cuts, origin in zip(grid.cuts, unit.box.start, strict=True)
        ]
        self._strides = [math.prod(grid.parts[d + 1 :]) for d in range(len(grid.parts))]
        self._chunk_starts = [
            [unit.chunks[i * stride].box.start[d] for i in range(parts)]
            for d, (stride, parts) in enumerate(zip(self._strides, grid.parts, strict=True))
        ]
        self._known: list[dict[tuple[int, int], list[_Segment]]] = [{} for _ in grid.parts]

    def slots(self, box: Box) -> Iterator[Slot]:
        """The slots of a box of the target, in row-major order of the chunks; ``in_band`` is counted from its start."""
        along = [
            self._along(d, a, b) for d, (a, b) in enumerate(zip(box.start, box.stop, strict=True))
        ]
        for parts in itertools.product(*along):
            yield Slot(
                sum([p.number for p in parts]),
                tuple([p.in_box for p in parts]),
                tuple([p.start for p in parts]),
                tuple([p.size for p in parts]),
            )

    def slots_of(self, piece: Piece, box: Box) -> Iterator[Slot]:
        """The slots of a box of a piece."""
        moved = piece.in_target(box)
        if piece.target_view is None:
            return self.slots(moved)
        return self._viewed(piece, box, moved)

    def _viewed(self, piece: Piece, box: Box, moved: Box) -> Iterator[Slot]:
        """The slots if dimensions of the target are split: a part of a chunk is one box of the view, or a few."""
        view = piece.target_view
        for place, _ in piece.target_boxes(box):
            for slot in self.slots(place):
                begins = [p + w.start for p, w in zip(place.start, slot.in_band, strict=True)]
                whole = Box.full(slot.shape).shift(begins)
                for inside, part in () if view is None else view.parts(whole):
                    yield Slot(
                        slot.number,
                        tuple(map(slice, *_ends(part.relative_to(moved.start)))),
                        inside.relative_to(begins).shift(slot.start).start,
                        inside.shape,
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
            in_box = slice(first - start, last - start)
            yield _Segment(part * self._strides[dim], in_box, in_chunk, last - first)


def _ends(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return box.start, box.stop


def runs(
    start: Sequence[int], shape: Sequence[int], stored: Sequence[int], itemsize: int
) -> list[tuple[int, int]]:
    """The place of a box in a row-major chunk: offset and length in bytes of each contiguous run.

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
