"""Which share of each target shard's bytes each source shard has.

The ``slices`` of source and target are grids, so a bisect per dimension finds the sources of a target shard; pairs are
never scanned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec import Struct

from reshard.geometry.box import Box
from reshard.geometry.grid import Grid, Index
from reshard.planning.tensor_plan import TensorPlan


class Share(Struct, frozen=True):
    """The part of a target shard's elements that one source shard had.

    Attributes:
        target, source: shards, numbered row-major over the grid of the layout.
        share: above 0, at most 1.
    """

    target: int
    source: int
    share: float


def shares(tensor: TensorPlan) -> Iterator[Share]:
    """Every share of every target shard, target shards in order; empty tensors have none.

    Sources are those of its first piece; elements of a target shard that it does not fill belong to none of them.
    """
    piece = tensor.piece
    sources, targets = tensor.source.spec.slices, tensor.target.spec.slices
    for number, index in enumerate(targets.indices()):
        shard = targets.box(index)
        for part in piece.of_target(shard):
            for source, size in _overlaps(sources, piece.to_source(part)):
                yield Share(number, source, size / shard.size)


def _overlaps(grid: Grid, box: Box) -> Iterator[tuple[int, int]]:
    """Number of each part that ``box`` touches, and how many elements they share."""
    for index in itertools.product(*grid.overlapping(box)):
        common = grid.box(index).intersect(box) if box.rank else box
        if common is not None:
            yield _number(grid, index), common.size


def _number(grid: Grid, index: Index) -> int:
    number = 0
    for place, parts in zip(index, grid.parts, strict=True):
        number = number * parts + place
    return number
