"""The grid in which a tensor of loose boxes is read.

The boxes tile the tensor but need not form a grid. Cuts that split no box are kept::

       0       4   6
    0  +-------+---+
       |       |   |
    2  +---+---+-+-+      the cut at row 2 splits no box;
       |   |     | |      each of those at columns 2, 4 and 5 splits one
    3  +---+-----+-+

Each box is within one part of this grid. Small parts are joined, since each costs a call. Large parts are cut along the
axis that is stored slowest, so that workers share them; such a cut divides a box into two contiguous ranges.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, pairwise

from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid

MAX_SPLIT_PARTS = 1 << 16
"""Most parts into which large parts are cut: a file with holes may claim any size."""


def unsplit_grid(shape: tuple[int, ...], boxes: Sequence[Box]) -> Grid:
    """The finest grid that splits none of the boxes, which tile the tensor; empty ones are ignored.

    Boxes that form a grid are its parts.
    """
    filled = [box for box in boxes if box.size]
    if not filled:
        return Grid.whole(shape)
    return Grid(shape, tuple(_unsplit_cuts(n, filled, dim) for dim, n in enumerate(shape)))


def _unsplit_cuts(size: int, boxes: Sequence[Box], dim: int) -> Cuts:
    starts = sorted([box.start[dim] for box in boxes])
    stops = sorted([box.stop[dim] for box in boxes])
    # As many boxes end up to a cut as begin before it, if it splits none.
    inner = (c for c in sorted(set(starts)) if bisect_left(starts, c) == bisect_right(stops, c))
    return (*inner, size)


def with_parts_joined(grid: Grid, least: int) -> Grid:
    """The grid with parts of fewer than ``least`` elements joined to parts of about as many, the last dimension first."""
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    for dim in reversed(range(len(cuts))):
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        cuts[dim] = _joined_cuts(cuts[dim], least // max(1, others))
        largest[dim] = max((b - a for a, b in pairwise(cuts[dim])), default=0)
    return Grid(grid.shape, tuple(cuts))


def _joined_cuts(cuts: Cuts, rows: int) -> Cuts:
    """The cuts that are nearest to even ones, about ``rows`` apart."""
    if rows < 2 or len(cuts) < 3:
        return cuts
    at = (bisect_right(cuts, even) - 1 for even in _even_cuts(cuts[-1], rows))
    return tuple(dict.fromkeys(cuts[n] for n in at))


def split_large(grid: Grid, most: int, order: Sequence[int]) -> Grid:
    """The grid with parts of more than ``most`` elements cut, along the first axis of ``order`` that allows it.

    The parts before that axis are single rows, so that what a part holds of a row-major box (of axes in that order) is
    contiguous. There are at most a few times MAX_SPLIT_PARTS more of them.
    """
    most = max(most, math.prod(grid.shape) // MAX_SPLIT_PARTS)
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    for dim in order:
        if math.prod(largest) <= most:
            break
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        cuts[dim] = _split_cuts(cuts[dim], max(1, most // others))
        largest[dim] = max(b - a for a, b in pairwise(cuts[dim]))
    return grid if list(grid.cuts) == cuts else Grid(grid.shape, tuple(cuts))


def _split_cuts(cuts: Cuts, rows: int) -> Cuts:
    """The cuts, and even ones at most ``rows`` apart where they are further apart."""
    even = _even_cuts(cuts[-1], rows)
    split = [0]
    for a, b in pairwise(cuts):
        if b - a > rows:
            split += even[bisect_right(even, a) : bisect_left(even, b)]
        split.append(b)
    return tuple(split)


def _even_cuts(size: int, rows: int) -> Sequence[int]:
    """Cuts of a dimension into even parts of at most ``rows``.

    Their number is 1, 2 or 6 times a power of two, so that a mesh cuts the dimension at some of them.
    """
    parts = next(n for n in _counts() if -(-size // n) <= rows)
    return range(size + 1) if parts >= size else [size * n // parts for n in range(parts + 1)]


def _counts() -> Iterator[int]:
    yield from (1, 2)
    yield from (6 << n for n in count())
