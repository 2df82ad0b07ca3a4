"""Checks that loose boxes tile a tensor: all in bounds, no two overlapping, nothing left out.

Boxes that form a grid are recognised in one pass. Otherwise the tensor is halved again and again, each time at the edge
near the middle that cuts the fewest boxes, until one box fills a part. The element counts say which half to look at:
too many elements in a half mean an overlap, too few a gap. So an error is found on a single path. Sorting takes most of
the time; pairs of boxes are never compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.geometry.grid import Box


class _FilledBox(Struct, frozen=True):
    """The overlap of a box with a part of the tensor, its number of elements, and the part's box."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    size: int
    whole: Box


class _Region(Struct, frozen=True):
    """A region of the tensor, and the pieces of boxes in it."""

    region: Box
    pieces: Sequence[_FilledBox]

    @property
    def surplus(self) -> int:
        """Elements in the pieces minus elements in the region; negative if some are missing."""
        return sum(piece.size for piece in self.pieces) - self.region.size


def check_tiling(
    name: str,
    shape: Sequence[int],
    boxes: Sequence[Box],
    shown: Callable[[Box], str] = str,
) -> None:
    """Refuse boxes that do not contain each element of the tensor exactly once.

    Empty boxes are allowed anywhere in bounds. The LayoutError names the tensor and the box that is
    out of bounds, the two boxes that overlap, or a region that is in no box; ``shown`` is how it shows a box.
    """
    region = Box.full(shape)
    for box in boxes:
        _check_bounds(name, region, box, shown)
    fault = tiling_fault(region, boxes)
    if isinstance(fault, Box):
        _refuse(name, region, f"no piece holds {fault}")
    if fault is not None:
        first, second = map(shown, fault)
        _refuse(name, region, f"pieces {first} and {second} overlap")


def tiling_fault(region: Box, boxes: Sequence[Box]) -> Box | tuple[Box, Box] | None:
    """A part of a region that is in no box, or two boxes that overlap; None if boxes, all within the region, tile it."""
    filled = [box for box in boxes if box.size]
    if not region.size or is_grid(region, filled):
        return None
    pieces = [_FilledBox(box.start, box.stop, box.size, box) for box in filled]
    return _fault_of_regions(_Region(region, pieces))


def _check_bounds(name: str, region: Box, box: Box, shown: Callable[[Box], str]) -> None:
    ranks = {len(box.start), len(box.stop)}
    if ranks != {region.rank}:
        raise LayoutError(
            f"{name!r} of shape {list(region.stop)}: piece {_show(box)} needs a start and a stop for "
            f"each of its {region.rank} dimensions; correct or drop the record of that piece"
        )
    if not region.contains(box) or any(n < 0 for n in box.shape):
        raise LayoutError(
            f"{name!r} of shape {list(region.stop)}: piece {shown(box)} is out of bounds, expected "
            f"0 <= start <= stop <= size in each dimension; correct or drop the record of that piece"
        )


def _show(box: Box) -> str:
    return f"start={list(box.start)} stop={list(box.stop)}"


def is_grid(region: Box, boxes: Sequence[Box]) -> bool:
    """True if the boxes are the parts of a grid of a region that starts at 0; other boxes may tile it, too."""
    starts = [box.start for box in boxes]
    if not boxes or len(set(starts)) < len(boxes):
        return False
    along = zip(
        zip(*starts, strict=True), zip(*[box.stop for box in boxes], strict=True), strict=True
    )
    spans = [sorted(set(zip(*ends, strict=True))) for ends in along]
    return math.prod(map(len, spans)) == len(boxes) and all(map(_is_row, spans, region.stop))


def _is_row(spans: Sequence[tuple[int, int]], size: int) -> bool:
    """True if the spans follow one another from 0 to ``size``."""
    follows = all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    return follows and spans[0][0] == 0 and spans[-1][0] <= spans[-1][1] == size


def _fault_of_regions(whole: _Region) -> Box | tuple[Box, Box] | None:
    todo = [whole]
    while todo:
        part = todo.pop()
        halves = _halve(part)
        if halves is None:
            # No box has an edge in it, so each of its boxes fills it.
            if not part.pieces:
                return part.region
            if len(part.pieces) > 1:
                return part.pieces[0].whole, part.pieces[1].whole
            continue
        # A wrong count proves a fault in this half, so the other half is not looked at.
        faulty = [half for half in halves if half.surplus]
        todo = faulty[:1] or [*todo, *halves]
    return None


def _refuse(name: str, whole: Box, found: str) -> NoReturn:
    raise LayoutError(
        f"{name!r} of shape {list(whole.stop)}: {found}; expected each element in exactly one "
        f"piece, so a part of the checkpoint is missing or belongs to another one"
    )


def _halve(part: _Region) -> tuple[_Region, _Region] | None:
    """Cut a part at the best edge, or None if no box has an edge in it."""
    cuts = [(d, cut) for d in range(part.region.rank) if (cut := _middle_edge(part, d)) is not None]
    if not cuts:
        return None
    dim, cut = min(cuts, key=lambda c: _crossing(part, *c))
    low, high = _halves(part.region.start, part.region.stop, dim, cut)
    below, above = [], []
    for piece in part.pieces:
        if piece.stop[dim] <= cut:
            below.append(piece)
        elif piece.start[dim] >= cut:
            above.append(piece)
        else:
            first, second = _halves(piece.start, piece.stop, dim, cut)
            below.append(_FilledBox(first.start, first.stop, first.size, piece.whole))
            above.append(_FilledBox(second.start, second.stop, second.size, piece.whole))
    return _Region(low, below), _Region(high, above)


def _halves(start: tuple[int, ...], stop: tuple[int, ...], dim: int, cut: int) -> tuple[Box, Box]:
    low = Box(start, (*stop[:dim], cut, *stop[dim + 1 :]))
    return low, Box((*start[:dim], cut, *start[dim + 1 :]), stop)


def _crossing(part: _Region, dim: int, cut: int) -> int:
    return sum(p.start[dim] < cut < p.stop[dim] for p in part.pieces)


def _middle_edge(part: _Region, dim: int) -> int | None:
    """The median of the starts of pieces that are not an edge of the part itself."""
    low = part.region.start[dim]
    inner = [p.start[dim] for p in part.pieces if p.start[dim] > low]
    if not inner:
        high = part.region.stop[dim]
        return max((p.stop[dim] for p in part.pieces if p.stop[dim] < high), default=None)
    inner.sort()
    return inner[len(inner) // 2]
