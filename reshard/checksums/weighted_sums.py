"""Weighted sums: a proof that elements lie where they belong, in whatever order of axes they are summed.

Each index of each dimension of a tensor has a weight, an odd number of 64 bits. An element counts as its bits times the weights of its
indices, modulo 2^64. A sum needs no copy in the tensor's order: it runs along memory, as the elements lie there.

An element that differs changes the sum, since its weight is odd. Two that are swapped leave it with a chance of at most one in 2^32:
they differ in at most 32 bits, and the difference of their weights has 63 random ones. So elements of 8 bytes and more count as words
of 4 bytes, each with a weight of its own. Lost and doubled elements of zero leave a sum as it is; ``coverage`` notices them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from reshard.geometry.grid import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Weights = NDArray[np.uint64]

MODULUS = 1 << 64

_TABLE = 1 << 16
"""Weights of a dimension that are kept: 512 KiB at most. Index ``i`` of a longer one has the product of those of ``i % _TABLE`` and of
``i // _TABLE``."""

_PASS_ELEMENTS = 256
"""Elements that the first pass makes one of, so that later passes, over numbers of 8 bytes, cost nothing beside it."""

_LONGEST_PASS = 1 << 16
"""At most so many: their weights take 8 bytes each."""


class Along(Struct, frozen=True):
    """The weights of elements along one or several axes of an array, which together are one dimension of the tensor.

    Attributes:
        axes: of the array, in the order of the axes of ``weights``.
    """

    axes: tuple[int, ...]
    weights: Weights


def weighted_sum(elements: Array, box: Box) -> int:
    """The sum of ``elements`` at ``box`` of a tensor, with its axes, modulo 2^64."""
    ends = enumerate(zip(box.start, box.stop, strict=True))
    return weighted_sum_along(elements, [Along((d,), weights_of(d, a, b)) for d, (a, b) in ends])


def weighted_sum_along(elements: Array, along: Sequence[Along]) -> int:
    """The sum of elements whose axes have these weights, each axis once, modulo 2^64."""
    if not elements.size:
        return 0
    total = 0
    for number, words in enumerate(_words(elements)):
        total += _sum(words, along) * _scalar(_WORDS, number)
    return total % MODULUS


def weights_of(dim: int, start: int, stop: int) -> Weights:
    """The weights of indices ``start`` to ``stop`` of a dimension.

    >>> bool((weights_of(0, 70_000, 70_002) == weights_of(0, 60_000, 80_000)[10_000:10_002]).all())
    True
    """
    first, last = start // _TABLE, max(start, stop - 1) // _TABLE
    if first == last:
        return _within(dim, first, start - first * _TABLE, stop - first * _TABLE)
    edges = [start, *(n * _TABLE for n in range(first + 1, last + 1)), stop]
    return np.concatenate([weights_of(dim, a, b) for a, b in itertools.pairwise(edges)])


def _within(dim: int, table: int, start: int, stop: int) -> Weights:
    size = min(_TABLE, 1 << max(0, stop - 1).bit_length())
    found = _table(dim, size)[start:stop]
    return found if table == 0 else found * np.uint64(_scalar(dim + _LONG, table))


_WORDS, _LONG = 1 << 20, 1 << 21
"""Numbers of dimensions that no tensor has: of the words of an element, and of the tables of a long dimension."""


@lru_cache(maxsize=64)
def _table(dim: int, size: int) -> Weights:
    return _mixed(np.arange(size, dtype=np.uint64) + np.uint64(dim << 32))


@lru_cache(maxsize=1024)
def _scalar(dim: int, index: int) -> int:
    return int(_mixed(np.array([index + (dim << 32)], np.uint64))[0])


def _mixed(numbers: Weights) -> Weights:
    """Odd numbers without a pattern: the output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


def _words(elements: Array) -> list[Array]:
    """The elements as unsigned integers of at most 4 bytes: their first words, their second ones, and so on."""
    itemsize = elements.dtype.itemsize
    if itemsize <= 4:
        return [elements.view(f"u{itemsize}")]
    names = [str(number) for number in range(itemsize // 4)]
    words = elements.view([(name, np.uint32) for name in names])
    return [words[name] for name in names]


def _sum(words: Array, along: Sequence[Along]) -> int:
    """The sum of one word of each element: first over the axes that lie closest in memory, then over the rest."""
    near, rest = _parted(words, along)
    if math.prod(words.shape[axis] for axis in near) > _LONGEST_PASS:
        return _sum_of_halves(words, along)
    left = [axis for one in rest for axis in one.axes]
    turned = words.transpose(*left, *near)
    weights = _product(near, along)
    if _is_one_run(turned, len(left)):  # numpy sums up one long axis faster than several short ones
        turned, weights = turned.reshape(*turned.shape[: len(left)], -1), weights.reshape(-1)
    axes = list(range(turned.ndim))
    found = np.einsum(turned, axes, weights, axes[len(left) :], axes[: len(left)])
    for one in rest:
        axes = list(range(found.ndim))
        found = np.einsum(found, axes, one.weights, axes[: len(one.axes)], axes[len(one.axes) :])
    return int(found)


def _is_one_run(words: Array, first: int) -> bool:
    """True if the axes from ``first`` on are one run of elements at equal distances."""
    inner = zip(words.shape[first + 1 :], words.strides[first + 1 :], strict=True)
    return all(
        outer == size * stride
        for outer, (size, stride) in zip(words.strides[first:-1], inner, strict=True)
    )


def _parted(words: Array, along: Sequence[Along]) -> tuple[tuple[int, ...], list[Along]]:
    """The axes that the first pass sums over, in the order of memory, and the weights of the others."""
    in_memory = sorted(range(words.ndim), key=lambda axis: -abs(words.strides[axis]))
    near: set[int] = set()
    for axis in reversed(in_memory):
        if math.prod(words.shape[a] for a in near) >= _PASS_ELEMENTS:
            break
        near.update(*(one.axes for one in along if axis in one.axes))
    return tuple(a for a in in_memory if a in near), [o for o in along if o.axes[0] not in near]


def _product(near: tuple[int, ...], along: Sequence[Along]) -> Weights:
    """The product of the weights of these axes."""
    found = np.ones((), np.uint64)
    for one in along:
        if one.axes[0] in near:
            found = found[..., *(np.newaxis,) * one.weights.ndim] * one.weights
    order = [axis for one in along if one.axes[0] in near for axis in one.axes]
    return found.transpose([order.index(axis) for axis in near])


def _sum_of_halves(words: Array, along: Sequence[Along]) -> int:
    """The same in two halves, cut along the longest axis, whose weights fit then."""
    axis = max(range(words.ndim), key=words.shape.__getitem__)
    middle = words.shape[axis] // 2
    return sum(
        _sum(words[(slice(None),) * axis + (half,)], [_cut(one, axis, half) for one in along])
        for half in (slice(0, middle), slice(middle, None))
    )


def _cut(one: Along, axis: int, part: slice) -> Along:
    if axis not in one.axes:
        return one
    where = tuple(part if a == axis else slice(None) for a in one.axes)
    return Along(one.axes, one.weights[where])
