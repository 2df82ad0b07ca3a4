"""Origins that are read off a pair of real checkpoints, where no probes were made.

A line of a target along one axis is found among the lines of the source by a hash that does not depend on the order within it, and the
order by a hash across lines. Then every value is compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.maps.example.probes import (
    CONSTANT,
    SEVERAL,
    SHORTEST,
    TOO_SHORT,
    UNKNOWN,
    Numbering,
    Origins,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Arrays = Mapping[str, Array]

FEW = 4
"""Lines of a target by which factors are tried."""

Split = tuple[tuple[int, ...], int]
"""A shape, perhaps with one axis split in two, and the axis along which lines are taken."""


class Scaling(Struct, frozen=True):
    """The arithmetic on each value, in float32, before it is rounded to the target's dtype."""

    factor: float = 1.0
    addend: float = 0.0
    divides: bool = False

    def __call__(self, x: Array, dtype: Any) -> Array:
        """Values as they are in a target."""
        import numpy as np

        if self == SAME:
            return x.astype(dtype)
        wide, factor = x.astype(np.float32), np.float32(self.factor)
        scaled = wide / factor if self.divides else wide * factor
        made: Array = (scaled + np.float32(self.addend)).astype(dtype)
        return made


SAME = Scaling()


class _Lines(Struct, frozen=True):
    """The lines of one length of a source, in the order of their hashes.

    Attributes:
        first: the number of the first element of each; SEVERAL where lines elsewhere have the same hash.
        step: from element to element.
    """

    hashes: Array
    first: Array
    step: Array

    def find(self, hashes: Array) -> tuple[Array, Array]:
        """First element and step of each line; UNKNOWN where the source has none."""
        import numpy as np

        if not self.hashes.size:
            return np.full(hashes.shape, UNKNOWN), np.zeros(hashes.shape, np.int64)
        at = np.minimum(np.searchsorted(self.hashes, hashes), self.hashes.size - 1)
        is_there = self.hashes[at] == hashes
        return np.where(is_there, self.first[at], UNKNOWN), self.step[at]


def pair_origins(
    numbering: Numbering, source: Arrays, target: Arrays, sizes: Sequence[int] = ()
) -> dict[str, Origins]:
    """The origins of each target, from the values of both.

    An element that several places of the source hold is SEVERAL.

    Args:
        sizes: of the model, by which axes are split, and whose square roots may be factors.
    """
    return _Search(numbering, source, target, sizes).origins()


class _Search:
    """The lines of a source, made as they are asked for."""

    def __init__(
        self, numbering: Numbering, source: Arrays, target: Arrays, sizes: Sequence[int]
    ) -> None:
        self.numbering, self.source, self.target = numbering, source, target
        axes = {n for side in (source, target) for array in side.values() for n in array.shape}
        self.sizes = sorted({*sizes, *axes} - {0, 1})
        self.roots = [math.sqrt(n) for n in self.sizes]
        self.lines: dict[tuple[Scaling, Any, int, bool], _Lines] = {}
        self.sums: dict[tuple[int, bool], Array] = {}

    def origins(self) -> dict[str, Origins]:
        return {name: self._origin(array) for name, array in self.target.items()}

    def _origin(self, y: Array) -> Origins:
        """The origins of one target; whole axes and plain values come first, since each step takes longer than the one before."""
        import numpy as np

        is_several = False
        for is_split in (False, True):
            for does in self._likely(y, is_split):
                if does != SAME and is_several:
                    break
                for shape, axis in _splits(y.shape, self.sizes if is_split else ()):
                    found = self._along(y.reshape(shape), axis, does, is_split)
                    if found is None:
                        continue
                    if (found == SEVERAL).any():
                        is_several = True
                        continue
                    factor = 1 / does.factor if does.divides else does.factor
                    return Origins(found.reshape(y.shape), np.broadcast_to(factor, y.shape))
        return Origins(np.full(y.shape, _why_unknown(y, is_several)), np.broadcast_to(1.0, y.shape))

    def _likely(self, y: Array, is_split: bool) -> Iterator[Scaling]:
        """The scalings that may have made a target: none, ± 1, and the factors that some lines have in common with lines of the source."""
        import numpy as np

        yield from (SAME, Scaling(addend=1.0), Scaling(addend=-1.0))
        for shape, axis in _splits(y.shape, self.sizes if is_split else ()):
            lines = np.moveaxis(y.reshape(shape), axis, -1).reshape(-1, shape[axis])
            few = lines[np.linspace(0, len(lines) - 1, FEW, dtype=np.int64)]
            for factor in self._factors(few, is_split):
                yield Scaling(factor)
                yield Scaling(1 / factor, divides=True)

    def _factors(self, lines: Array, is_split: bool) -> list[float]:
        """Roots of sizes, and their inverses, that may make each of these lines from some line of the source."""
        import numpy as np

        n = lines.shape[1]
        if (n, is_split) not in self.sums:
            each = self._each_line(SAME, None, n, is_split)
            self.sums[n, is_split] = np.concatenate(
                [np.zeros((0, 3)), *(_sums(x) for x, _, _ in each)]
            )
        total, square, fourth = self.sums[n, is_split].T
        near = max(1e-5, 8 * _unit(lines.dtype))
        left = np.array([*self.roots, *(1 / root for root in self.roots)])
        for mine in _sums(lines):
            with np.errstate(all="ignore"):
                ratio = np.sqrt(mine[1] / square)
                is_near = np.abs(mine[0] - ratio * total) <= near * math.sqrt(n * mine[1])
                is_near &= np.abs(mine[2] - ratio**4 * fourth) <= near * mine[2]
            ratios = np.unique(ratio[is_near])
            left = left[(np.abs(ratios / left[:, None] - 1) <= near).any(axis=1)]
        found: list[float] = left.tolist()
        return found

    def _along(self, y: Array, axis: int, does: Scaling, is_split: bool) -> Array | None:
        """The numbers of all elements, by lines along one axis; None where the source has not all of them."""
        import numpy as np

        turned = np.moveaxis(y, axis, -1)
        lines = turned.reshape(-1, y.shape[axis])
        n = lines.shape[1]
        first, step = self._lines(does, y.dtype, n, is_split).find(_hashes(lines))
        is_still = (_bits(lines) == _bits(lines[:, :1])).all(axis=1)
        is_lost = (first == UNKNOWN) & ~is_still
        # A line of one value may be from anywhere, if the source has such a line at all.
        numbers = np.where(is_still & (first != UNKNOWN), SEVERAL, first)
        rows = np.flatnonzero(numbers >= 0)
        if is_lost.any() or (not rows.size and not (numbers == SEVERAL).any()):
            return None
        whole = np.repeat(np.where(numbers == UNKNOWN, CONSTANT, numbers)[:, None], n, axis=1)
        if rows.size:
            at = first[rows, None] + np.arange(n) * step[rows, None]
            made = does(self._values(at), y.dtype)
            order = _order(lines[rows], made)
            if (_bits(made[:, order]) != _bits(lines[rows])).any():
                return None
            whole[rows] = at[:, order]
        return np.moveaxis(whole.reshape(turned.shape), -1, axis)

    def _values(self, numbers: Array) -> Array:
        """The source's elements of these numbers; the lines of one target are of one dtype."""
        import numpy as np

        first = np.array(self.numbering.first)
        owner = np.searchsorted(first, numbers, "right") - 1
        owners = np.unique(owner)
        names = [self.numbering.names[k] for k in owners]
        found = np.empty(numbers.shape, np.result_type(*(self.source[n].dtype for n in names)))
        for k, name in zip(owners, names, strict=True):
            mine = owner == k
            found[mine] = self.source[name].ravel()[numbers[mine] - first[k]]
        return found

    def _lines(self, does: Scaling, dtype: Any, n: int, is_split: bool) -> _Lines:
        key = (does, dtype, n, is_split)
        if key not in self.lines:
            each = self._each_line(does, dtype, n, is_split)
            self.lines[key] = _sorted([(_hashes(x), starts, step) for x, starts, step in each])
        return self.lines[key]

    def _each_line(
        self, does: Scaling, dtype: Any, n: int, is_split: bool
    ) -> Iterator[tuple[Array, Array, int]]:
        """Lines of the source that are n long: their values, as they are in a target, the number of the first of each, and the step."""
        import numpy as np

        for name, base in zip(self.numbering.names, self.numbering.first, strict=False):
            array = self.source[name]
            splits = [
                (shape, axis)
                for shape, axis in _splits(array.shape, self.sizes if is_split else ())
                if shape[axis] == n
            ]
            if not splits:
                continue
            made = array if dtype is None else does(array, dtype)
            for shape, axis in splits:
                step = math.prod(shape[axis + 1 :])
                outer = np.arange(array.size // (n * step)) * (n * step)
                starts = (base + outer[:, None] + np.arange(step)).ravel()
                lines = np.moveaxis(made.reshape(shape), axis, -1).reshape(-1, n)
                yield lines, starts, step


def _splits(shape: tuple[int, ...], sizes: Sequence[int]) -> Iterator[Split]:
    """Every axis along which lines are long enough; with sizes also the parts of axes that are split in two."""
    every = range(len(shape))
    yield from ((shape, axis) for axis in every if _is_long(shape, axis))
    for axis, size in itertools.product(every, sizes):
        if size < shape[axis] and shape[axis] % size == 0:
            parts = (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
            yield from ((parts, k) for k in (axis, axis + 1) if _is_long(parts, k))


def _is_long(shape: Sequence[int], axis: int) -> bool:
    return shape[axis] >= SHORTEST or 0 < shape[axis] == math.prod(shape)


def _sorted(found: Sequence[tuple[Array, Array, int]]) -> _Lines:
    import numpy as np

    if not found:
        none = np.zeros(0, np.int64)
        return _Lines(none.astype(np.uint64), none, none)
    hashes = np.concatenate([hashes for hashes, _, _ in found])
    first = np.concatenate([starts for _, starts, _ in found])
    step = np.concatenate([np.full(starts.size, step) for _, starts, step in found])
    order = np.argsort(hashes)
    hashes, first, step = hashes[order], first[order], step[order]
    starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]) != 0)
    is_one = np.ones(starts.size, bool)
    for numbers in (first, step):  # the same line may be met in several splits of an axis
        is_one &= np.minimum.reduceat(numbers, starts) == np.maximum.reduceat(numbers, starts)
    return _Lines(hashes[starts], np.where(is_one, first[starts], SEVERAL), step[starts])


def _bits(x: Array) -> Array:
    import numpy as np

    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _scrambled(x: Array) -> Array:
    """A 64-bit hash of each value: two rounds of multiplying by an odd number, and of shifting."""
    import numpy as np

    bits = (_bits(x).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    scrambled: Array = bits ^ (bits >> np.uint64(32))
    return scrambled


def _hashes(lines: Array) -> Array:
    """The hash of each line, whatever the order of its values."""
    hashes: Array = _scrambled(lines).sum(axis=1)
    return hashes


def _sums(lines: Array) -> Array:
    """The sum of each line, and those of its squares and fourth powers."""
    import numpy as np

    x = lines.astype(np.float64)
    square = x * x
    return np.stack([x.sum(axis=1), square.sum(axis=1), (square * square).sum(axis=1)], axis=1)


def _unit(dtype: Any) -> float:
    """The largest relative error of rounding to a dtype."""
    import ml_dtypes

    if dtype.kind in "iub":
        return 0.0
    return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call] # ml_dtypes has no types for it


def _order(mine: Array, theirs: Array) -> Array:
    """The equal column of ``theirs`` for each column of ``mine``: the one of its own place where that is equal."""
    import numpy as np

    weights = np.arange(1, 2 * len(mine), 2, dtype=np.uint64)[:, None]
    a, b = ((_scrambled(x) * weights).sum(axis=0) for x in (mine, theirs))
    order = np.argsort(b, kind="stable")
    at = order[np.minimum(np.searchsorted(b, a, sorter=order), b.size - 1)]
    return np.where(a == b, np.arange(a.size), at)


def _why_unknown(y: Array, is_several: bool) -> int:
    """The constant that stands for a number where no line of the source matches a target."""
    if is_several:
        return SEVERAL
    return TOO_SHORT if any(1 < n < SHORTEST for n in y.shape) else UNKNOWN
