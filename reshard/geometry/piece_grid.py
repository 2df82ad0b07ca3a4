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
from itertools import pairwise

from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid

MAX_SPLIT_PARTS = 1 << 16
"""Most parts into which large parts are cut: a file with holes may claim to hold any amount."""


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


def joined(grid: Grid, most: int) -> Grid:
    """The grid with neighbouring parts joined while they hold at most ``most`` elements, the last dimension first."""
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    for dim in reversed(range(len(cuts))):
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        cuts[dim] = _joined_cuts(cuts[dim], most // max(1, others))
        largest[dim] = max((b - a for a, b in pairwise(cuts[dim])), default=0)
    return Grid(grid.shape, tuple(cuts))


def _joined_cuts(cuts: Cuts, most: int) -> Cuts:
    kept = [cuts[0]]
    for cut, following in pairwise(cuts[1:]):
        if following - kept[-1] > most:
            kept.append(cut)
    return (*kept, cuts[-1]) if len(cuts) > 1 else cuts


def split_large(grid: Grid, most: int, order: Sequence[int]) -> Grid:
    """The grid with parts of more than ``most`` elements cut, along the first axis of ``order`` that allows it.

    The parts before that axis are single rows, so that what a part holds of a row-major box (of axes in that order) is
    contiguous. There are at most about MAX_SPLIT_PARTS more of them.
    """
    most = max(most, math.prod(grid.shape) // MAX_SPLIT_PARTS)
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    if math.prod(largest) <= most:
        return grid
    for dim in order:
        if math.prod(largest) <= most:
            break
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        rows = max(1, most // others)
        cuts[dim] = (0, *(c for a, b in pairwise(cuts[dim]) for c in _even(a, b, rows)))
        largest[dim] = min(largest[dim], rows)
    return Grid(grid.shape, tuple(cuts))


def _even(start: int, stop: int, most: int) -> Iterator[int]:
    """The ends of as few even steps of at most ``most`` as there can be."""
    count = -(-(stop - start) // most)
    return (start + (stop - start) * n // count for n in range(1, count + 1))
