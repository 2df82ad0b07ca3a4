"""LeafTree: the tiles of a tensor that its hash is made of, and the binary tree over them.

Both follow from the shape and the size of an element alone, so that every mesh, chunking and format has the same. Dimension ``d``
is cut at ``i * n_d // 2 ** k_d``. The dimension with the fewest halvings so far is halved (the first of several) where more
than one element is left along it, of the last dimension 512 bytes, until the largest leaf has 64 KiB or less. The order
of the halvings is the tree: the first cuts the whole tensor in two, the next each of the halves, and so on::

    (4, 6) halved 0, 1, 0       leaves 0 1 | 2 3 of a half of the rows:     0 0 0 2 2 2
                                                                            1 1 1 3 3 3
                                                                            4 4 4 6 6 6
                                                                            5 5 5 7 7 7
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import product

from msgspec import Struct

from reshard.geometry.grid import Box, Grid, Index

LEAF_BYTES = 64 << 10
"""Leaves are halved until the largest has so many bytes, or fewer."""

KEPT_BYTES = 1 << 20
"""Size of the smallest nodes that are kept of a tree."""

LEAST_ROW_BYTES = 512
"""Rows of a leaf are not halved below this: they would be too short to copy and hash fast."""

# Trees with more are made anew each time: 256 of them, each within the budget, would take many times the budget.
_SHARED_CUTS = 1 << 14


class LeafSpan(Struct, frozen=True):
    """The part of a leaf within a band, along one dimension.

    Attributes:
        place: its share in the number of a leaf.
        part: the elements, as a slice of the band.
        begins, ends: true if the leaf begins, or ends, within the band.
    """

    place: int
    part: slice
    begins: bool
    ends: bool


class LeafTree(Struct, frozen=True, dict=True):
    """The leaves of a tensor of ``shape``.

    Attributes:
        order: the dimension that each level halves, from the top.
        grid: the leaves, as a grid.
    """

    shape: tuple[int, ...]
    itemsize: int
    order: tuple[int, ...]
    grid: Grid

    @classmethod
    def of(cls, shape: Sequence[int], itemsize: int) -> LeafTree:
        """The tree of a tensor; one leaf for a scalar and for an empty tensor."""
        _, cuts = leaves_and_cuts(shape, itemsize)
        make = _shared_tree if cuts <= _SHARED_CUTS else _tree
        return make(tuple(shape), itemsize)

    @property
    def depth(self) -> int:
        """The number of levels below the top."""
        return len(self.order)

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 << self.depth

    def node_box(self, level: int, number: int) -> Box:
        """The box of a node; the top is level 0."""
        if not self.order:
            return Box.full(self.shape)
        at, left = [0] * len(self.shape), list(self.halvings)
        for dim, bit in zip(self.order[:level], _bits(number, level), strict=True):
            at[dim] = 2 * at[dim] + bit
            left[dim] -= 1
        first = tuple([i << k for i, k in zip(at, left, strict=True)])
        behind = tuple([(i + 1) << k for i, k in zip(at, left, strict=True)])
        cuts = self.grid.cuts
        return Box(
            tuple([c[i] for c, i in zip(cuts, first, strict=True)]),
            tuple([c[i] for c, i in zip(cuts, behind, strict=True)]),
        )

    @property
    def halvings(self) -> tuple[int, ...]:
        """The number of halvings of each dimension."""
        return tuple([self.order.count(dim) for dim in range(len(self.shape))])

    def kept_level(self, least_bytes: int) -> int:
        """The deepest level whose nodes have, on average, ``least_bytes`` or more; 0 where the whole tensor has fewer."""
        return _level_of(math.prod(self.shape) * self.itemsize, least_bytes, self.depth)

    def level_grid(self, level: int) -> Grid:
        """The boxes of the nodes of a level, as a grid."""
        return Grid(
            self.shape,
            tuple([c[:: 1 << k] for c, k in zip(self.grid.cuts, self._left(level), strict=True)]),
        )

    def node_at(self, level: int, index: Index) -> int:
        """The number of the node at an index of ``level_grid``."""
        if not self.order:
            return 0
        parts = zip(self._places, index, self._left(level), strict=True)
        return sum([places[i << k] for places, i, k in parts]) >> (self.depth - level)

    def _left(self, level: int) -> list[int]:
        """The number of halvings of each dimension below a level."""
        below = self.order[level:]
        return [below.count(dim) for dim in range(len(self.shape))]

    def in_band(self, band: Box) -> Iterator[tuple[LeafSpan, ...]]:
        """The spans of each leaf that a band touches, row-major; their places add up to the leaf's number."""
        return product(*map(self._spans, range(len(self.shape)), band.start, band.stop))

    def _spans(self, dim: int, start: int, stop: int) -> list[LeafSpan]:
        cuts, places = self.grid.cuts[dim], self._places[dim]
        if len(cuts) == 1:  # an empty tensor is one empty leaf
            return [LeafSpan(0, slice(0, 0), begins=True, ends=True)]
        first, behind = bisect_right(cuts, start) - 1, bisect_left(cuts, stop)
        return [
            LeafSpan(
                places[i],
                slice(max(cuts[i], start) - start, min(cuts[i + 1], stop) - start),
                begins=cuts[i] >= start,
                ends=cuts[i + 1] <= stop,
            )
            for i in range(first, behind)
        ]

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """The share of each part along each dimension in the number of a leaf."""
        bits: list[list[int]] = [[] for _ in self.shape]
        for level, dim in enumerate(self.order):
            bits[dim].append(1 << (self.depth - 1 - level))
        return tuple([tuple(_sums(of_dim)) for of_dim in bits])


def _sums(bits: Sequence[int]) -> list[int]:
    """The sums for all numbers of ``len(bits)`` binary digits; the first digit is worth ``bits[0]``."""
    found = [0]
    for bit in bits:
        found = [total for before in found for total in (before, before + bit)]
    return found


def _bits(number: int, count: int) -> Iterator[int]:
    return ((number >> at) & 1 for at in reversed(range(count)))


def kept_level_of(shape: Sequence[int], itemsize: int, least_bytes: int) -> int:
    """``LeafTree.kept_level`` from the shape alone; it makes no tree, since the shape of a file is not trusted."""
    depth = len(_order_of(tuple(shape), itemsize))
    return _level_of(math.prod(shape) * itemsize, least_bytes, depth)


def leaves_and_cuts(shape: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The numbers of leaves and cuts of a tree, all dimensions together, without the tree."""
    order = _order_of(tuple(shape), itemsize)
    cuts = sum([(1 << order.count(dim)) + 1 for dim in range(len(shape))])
    return 1 << len(order), cuts


def _level_of(nbytes: int, least_bytes: int, depth: int) -> int:
    return min(depth, max(0, (nbytes // least_bytes).bit_length() - 1))


@lru_cache(maxsize=256)  # layers of a model repeat their shapes
def _shared_tree(shape: tuple[int, ...], itemsize: int) -> LeafTree:
    return _tree(shape, itemsize)


def _tree(shape: tuple[int, ...], itemsize: int) -> LeafTree:
    order = _order_of(shape, itemsize)
    if not order:
        return LeafTree(shape, itemsize, (), Grid.whole(shape))
    halvings = [order.count(dim) for dim in range(len(shape))]
    cuts = tuple(
        tuple([i * n >> k for i in range((1 << k) + 1)])
        for n, k in zip(shape, halvings, strict=True)
    )
    return LeafTree(shape, itemsize, order, Grid(shape, cuts))


@lru_cache(maxsize=256)
def _order_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(_order(shape, itemsize))


def _order(shape: Sequence[int], itemsize: int) -> Iterator[int]:
    halvings = [0] * len(shape)
    while _largest_bytes(shape, halvings, itemsize) > LEAF_BYTES:
        dims = [d for d in range(len(shape)) if _may_halve(shape, halvings, itemsize, d)]
        if not dims:
            return
        dim = min(dims, key=lambda d: halvings[d])
        halvings[dim] += 1
        yield dim


def _largest_bytes(shape: Sequence[int], halvings: Sequence[int], itemsize: int) -> int:
    return math.prod(-(-n >> k) for n, k in zip(shape, halvings, strict=True)) * itemsize


def _may_halve(shape: Sequence[int], halvings: Sequence[int], itemsize: int, dim: int) -> bool:
    left = shape[dim] >> halvings[dim]
    is_last = dim == len(shape) - 1
    return left > 1 and (not is_last or left * itemsize >= LEAST_ROW_BYTES)
