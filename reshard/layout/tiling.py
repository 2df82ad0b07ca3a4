"""Whether loose boxes tile a tensor: all in bounds, no two overlapping, nothing left out.

Boxes that form a grid are recognised in one pass. Any others are halved again and again at the
edge, near the middle, that cuts the fewest of them, until a part is held by one box. The element
counts say which half is worth a look: a half that holds too many elements has an overlap, one
that holds too few has a gap, so an error is found on the way down a single path. Sorting
dominates; pairs of boxes are never compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from reshard.errors import LayoutError
from reshard.layout.box import Box


@dataclass(frozen=True, slots=True)
class _Part:
    """A region of the tensor, and the whole boxes that reach into it."""

    region: Box
    boxes: Sequence[Box]

    @property
    def surplus(self) -> int:
        """Elements that the boxes hold here beyond the region's own; negative where some lack."""
        return sum(_size_within(box, self.region) for box in self.boxes) - self.region.size


def check_tiling(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Refuse boxes that do not hold each element of the tensor exactly once.

    Empty boxes are allowed anywhere in bounds. The LayoutError names the tensor and the box that is
    out of bounds, the two boxes that overlap, or a region that no box holds.
    """
    region = Box.full(shape)
    for box in boxes:
        _check_bounds(name, region, box)
    filled = [box for box in boxes if box.size]
    if region.size and not _is_grid(region, filled):
        _check_parts(name, _Part(region, filled))


def _check_bounds(name: str, region: Box, box: Box) -> None:
    ranks = {len(box.start), len(box.stop)}
    if ranks != {region.rank}:
        raise LayoutError(
            f"{name!r} of shape {list(region.stop)}: piece {_show(box)} needs a start and a stop for "
            f"each of its {region.rank} dimensions; correct or drop the record of that piece"
        )
    if not region.contains(box) or any(n < 0 for n in box.shape):
        raise LayoutError(
            f"{name!r} of shape {list(region.stop)}: piece {box} is out of bounds, expected "
            f"0 <= start <= stop <= size in each dimension; correct or drop the record of that piece"
        )


def _show(box: Box) -> str:
    return f"start={list(box.start)} stop={list(box.stop)}"


def _is_grid(region: Box, boxes: Sequence[Box]) -> bool:
    starts = [sorted({box.start[d] for box in boxes}) for d in range(region.rank)]
    if math.prod(map(len, starts)) != len(boxes) or any(s[:1] != [0] for s in starts):
        return False
    follows = [dict(itertools.pairwise([*s, n])) for s, n in zip(starts, region.stop, strict=True)]
    return len({box.start for box in boxes}) == len(boxes) and all(
        b == follow[a]
        for box in boxes
        for follow, a, b in zip(follows, box.start, box.stop, strict=True)
    )


def _check_parts(name: str, whole: _Part) -> None:
    todo = [whole]
    while todo:
        part = todo.pop()
        halves = _halve(part)
        if halves is None:
            _check_filled_once(name, whole.region, part)
            continue
        # A wrong count proves a fault in that half, so the rest need not be looked at.
        faulty = [half for half in halves if half.surplus]
        todo = faulty[:1] or [*todo, *halves]


def _check_filled_once(name: str, whole: Box, part: _Part) -> None:
    """Check a part in which no box has an edge: each of its boxes fills it."""
    if not part.boxes:
        _refuse(name, whole, f"no piece holds {part.region}")
    if len(part.boxes) > 1:
        _refuse(name, whole, f"pieces {part.boxes[0]} and {part.boxes[1]} overlap")


def _refuse(name: str, whole: Box, found: str) -> NoReturn:
    raise LayoutError(
        f"{name!r} of shape {list(whole.stop)}: {found}; expected each element in exactly one "
        f"piece, so a part of the checkpoint is missing or belongs to another one"
    )


def _halve(part: _Part) -> tuple[_Part, _Part] | None:
    """Cut a part at the best edge, or None where no box has an edge in it."""
    cuts = [(d, cut) for d in range(part.region.rank) if (cut := _middle_edge(part, d)) is not None]
    if not cuts:
        return None
    dim, cut = min(cuts, key=lambda c: sum(b.start[c[0]] < c[1] < b.stop[c[0]] for b in part.boxes))
    start, stop = part.region.start, part.region.stop
    low = Box(start, (*stop[:dim], cut, *stop[dim + 1 :]))
    high = Box((*start[:dim], cut, *start[dim + 1 :]), stop)
    return (
        _Part(low, [box for box in part.boxes if box.start[dim] < cut]),
        _Part(high, [box for box in part.boxes if box.stop[dim] > cut]),
    )


def _middle_edge(part: _Part, dim: int) -> int | None:
    low, high = part.region.start[dim], part.region.stop[dim]
    edges = {box.start[dim] for box in part.boxes} | {box.stop[dim] for box in part.boxes}
    inner = sorted(e for e in edges if low < e < high)
    return inner[len(inner) // 2] if inner else None


def _size_within(box: Box, region: Box) -> int:
    shared = box.intersect(region)
    return shared.size if shared is not None else 0
