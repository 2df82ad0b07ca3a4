"""LoraFormula: a weight with the products of small factors added, in float64, rounded once.

Each axis of a weight is a letter, and "r" is the rank, over which a product is summed. A factor says which axes each of its dimensions joins, the
slowest first, so that one way of computing serves all adapters::

    linear    oi     A = r, i      B = o, r
    experts   eoi    A = er, i     B = o, re
    attention abc    A = a, r      B = r, bc
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from reshard.arithmetic.rounding import round_into
from reshard.formats.formula import Calculation, Formula
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Ranges = Mapping[str, tuple[int, int]]

RANK = "r"

ROWS = 16
_MOST_PRODUCTS = 1 << 18
"""Multiplications of a tile: OpenBLAS computes up to that number on the calling thread. More threads of its own only wait for one another."""


class Factor(Struct, frozen=True):
    """A tensor of an adapter: for each of its dimensions, the axes that are joined in it; "" for a dimension of size 1."""

    groups: tuple[str, ...]

    def fits(self, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
        """True if a tensor of that shape has these axes."""
        return tuple(shape) == tuple(math.prod(sizes[one] for one in each) for each in self.groups)

    def box(self, ranges: Ranges, sizes: Mapping[str, int]) -> Box:
        """The part that has these ranges of axes; of joined ones only the slowest is cut."""
        starts, stops = [], []
        for group in self.groups:
            rest = math.prod(sizes[one] for one in group[1:])
            start, stop = ranges[group[0]] if group else (0, 1)
            starts.append(start * rest)
            stops.append(stop * rest)
        return Box(tuple(starts), tuple(stops))

    def axes(self, part: Array, order: str, ranges: Ranges, sizes: Mapping[str, int]) -> Array:
        """The part of ``box``, with the axes in that order."""
        letters = "".join(self.groups)
        firsts = {group[:1] for group in self.groups}
        spans = {one: _length(ranges[one]) if one in firsts else sizes[one] for one in letters}
        apart = part.reshape([spans[one] for one in letters])
        cut = [slice(None) if one in firsts else slice(*ranges[one]) for one in letters]
        return apart[tuple(cut)].transpose([letters.index(one) for one in order])


class Addend(Struct, frozen=True, dict=True):
    """The change that an adapter makes to a weight.

    Attributes:
        axes: a letter for each dimension of the weight.
        rank: of the product; 0 for one factor that is added as it is.
        scale: of the product.
        factors: one, or two with the rank.
        alpha: the dimensions of a tensor of one number that multiplies the scale; None for no such tensor.
        magnitude: the length of each row that the result has (DoRA); None where rows have the lengths that they get.
    """

    axes: str
    rank: int
    scale: float
    factors: tuple[Factor, ...]
    alpha: Factor | None = None
    magnitude: Factor | None = None

    @property
    def operands(self) -> tuple[Factor, ...]:
        """The tensors of the adapter, in the order in which they are read."""
        return (*self.factors, *(one for one in (self.alpha, self.magnitude) if one is not None))

    @cached_property
    def sides(self) -> tuple[str, str, str]:
        """The axes that both factors have, those of rows, and those of columns: a product of matrices for each of the first."""
        first, second = (set("".join(factor.groups)) for factor in self.factors)
        batch = "".join(one for one in self.axes if one in first & second)
        rest = [one for one in self.axes if one not in batch]
        is_left = [(one in first) == (rest[0] in first) for one in rest]
        rows = "".join(one for one, left in zip(rest, is_left, strict=True) if left)
        return batch, rows, "".join(one for one in rest if one not in rows)

    @cached_property
    def kept(self) -> set[str]:
        """The axes over which rows have a length."""
        return set("".join(self.magnitude.groups)) if self.magnitude is not None else set(self.axes)

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """The size of each axis of a weight of that shape, and the rank."""
        return {**dict(zip(self.axes, shape, strict=True)), RANK: self.rank}

    def ranges(self, box: Box, shape: Sequence[int]) -> dict[str, tuple[int, int]]:
        """The range of each axis that a box needs. All but the slowest of rows, and of columns, are whole."""
        found = dict(zip(self.axes, zip(box.start, box.stop, strict=True), strict=True))
        if self.rank:
            _, rows, columns = self.sides
            sizes = self.sizes(shape)
            found |= {one: (0, sizes[one]) for one in rows[1:] + columns[1:] + RANK}
        return found


class LoraFormula(Formula, frozen=True):
    """A weight and what is added to it, in order.

    Attributes:
        shape: of the weight.
        addends: their factors follow the weight as operands; none for a weight that takes another's place.
        is_copied: True if bits are copied.
    """

    shape: tuple[int, ...]
    addends: tuple[Addend, ...] = ()
    is_copied: bool = False

    @property
    def is_opaque(self) -> bool:
        return self.is_copied

    @property
    def grain(self) -> tuple[int, ...]:
        """Whole rows where they have a length; else as many as a tile."""
        if not self.addends:
            return ()
        units = [1] * len(self.shape)
        for addend in self.addends:
            if addend.rank:
                units[addend.axes.index(addend.sides[1][0])] = ROWS
        whole = self.whole
        return tuple(
            max(1, size) if dim in whole else unit
            for dim, (size, unit) in enumerate(zip(self.shape, units, strict=True))
        )

    @property
    def whole(self) -> set[int]:
        """The dimensions that no window cuts."""
        return {d for a in self.addends for d, one in enumerate(a.axes) if one not in a.kept}

    @property
    def window_elements(self) -> int:
        """Of many rows, or of a grain."""
        least = 1
        if self.addends and (cut := [d for d, unit in enumerate(self.grain) if unit > 1]):
            least = self.grain[cut[0]] * math.prod(self.shape[cut[0] + 1 :])
        return max(1 << 16, least)

    @property
    def scratch_bytes(self) -> int:
        """Two arrays of float64 and two of 4 bytes; three and two with lengths of rows."""
        return 40 if self.whole else 24

    @property
    def fixed_bytes(self) -> int:
        """The factor of the columns in float64, padded, and a tile of rows."""
        total = 0
        for addend in self.addends:
            if addend.rank:
                sizes = addend.sizes(self.shape)
                columns = math.prod(sizes[one] for one in addend.sides[2])
                total += 8 * addend.rank * (columns + 2 * _columns(addend.rank) + ROWS)
                total += 8 * ROWS * 2 * _columns(addend.rank)
        return total

    def boxes(self, box: Box) -> Sequence[Box]:
        found = [box]
        for addend in self.addends:
            sizes, ranges = addend.sizes(self.shape), addend.ranges(box, self.shape)
            found += (factor.box(ranges, sizes) for factor in addend.operands)
        return found

    def opened(self, where: str, nbytes: int) -> Calculation:
        del where, nbytes
        return _Sum(self)


class _Sum(Calculation):
    """Keeps the factors of the last window in float64: those of columns are the same in most windows of a chunk."""

    def __init__(self, formula: LoraFormula) -> None:
        super().__init__(formula)
        self._lora = formula
        self._columns: dict[int, tuple[tuple[Any, ...], Array]] = {}

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        if self._lora.is_copied:
            out[...] = operands[0]
            return
        base, rest = widened(operands[0]), list(operands[1:])
        with np.errstate(all="ignore"):
            values = None
            for number, addend in enumerate(self._lora.addends):
                mine = [rest.pop(0) for _ in addend.operands]
                values = self._added(number, box, mine, base, values)
        round_into(out, np.ascontiguousarray(base if values is None else values, np.float64))

    def _added(
        self, number: int, box: Box, operands: list[Array], base: Array, values: Array | None
    ) -> Array:
        """The values so far, those of the base at first, with one more addend."""
        addend = self._lora.addends[number]
        magnitude = operands.pop() if addend.magnitude is not None else None
        scale: Any = addend.scale
        if addend.alpha is not None:
            scale *= operands.pop().astype(np.float64).reshape(())
        if addend.rank:
            found = self._product(number, box, operands, scale)
        else:
            found = np.broadcast_to(widened(operands[0]).astype(np.float64) * scale, box.shape)
        if magnitude is None or addend.magnitude is None:
            own = found if addend.rank and found.flags.c_contiguous else None
            return np.add(found, base if values is None else values, out=own)
        # The length is that of the base with this product alone, whatever was added before.
        whole = found + base
        across = tuple(dim for dim, one in enumerate(addend.axes) if one not in addend.kept)
        length = np.sqrt(np.square(whole).sum(axis=across, keepdims=True))
        wanted = magnitude.astype(np.float64).reshape(length.shape)
        return (whole if values is None else found + values) * (wanted / length)

    def _product(self, number: int, box: Box, factors: Sequence[Array], scale: Any) -> Array:
        """The product of two factors, in tiles of one size at fixed places: so an element has the same bits in windows of any size."""
        addend, shape = self._lora.addends[number], self._lora.shape
        batch, rows, columns = addend.sides
        sizes, ranges = addend.sizes(shape), addend.ranges(box, shape)
        is_first = rows[0] in "".join(addend.factors[0].groups)
        left, right = (0, 1) if is_first else (1, 0)
        count = math.prod(_length(ranges[one]) for one in batch)
        top, height = _flat(rows, ranges, sizes)
        start, width = _flat(columns, ranges, sizes)
        step = _columns(addend.rank)

        def rows_of() -> Array:
            part = addend.factors[left].axes(factors[left], batch + rows + RANK, ranges, sizes)
            high = -(-(top % ROWS + height) // ROWS)
            tiles = np.zeros((count, high * ROWS, addend.rank))
            tiles[:, top % ROWS : top % ROWS + height] = widened(part).reshape(
                count, height, addend.rank
            )
            tiles *= scale
            return tiles.reshape(count, high, 1, ROWS, addend.rank)

        def columns_of() -> Array:
            part = addend.factors[right].axes(factors[right], batch + RANK + columns, ranges, sizes)
            wide = -(-(start % step + width) // step)
            tiles = np.zeros((count, addend.rank, wide * step))
            tiles[:, :, start % step : start % step + width] = widened(part).reshape(
                count, addend.rank, width
            )
            apart = tiles.reshape(count, addend.rank, wide, step).transpose(0, 2, 1, 3)
            return np.ascontiguousarray(apart)[:, None]

        key = (*(ranges[one] for one in batch), start, width)
        if number not in self._columns or self._columns[number][0] != key:
            self._columns[number] = key, columns_of()
        low, across = rows_of(), self._columns[number][1]
        high, wide = low.shape[1], across.shape[2]
        flat = np.empty((count, high * ROWS, wide * step))
        np.matmul(
            low, across, out=flat.reshape(count, high, ROWS, wide, step).transpose(0, 1, 3, 2, 4)
        )
        found = flat[:, top % ROWS : top % ROWS + height, start % step : start % step + width]
        order = batch + rows + columns
        apart = found.reshape([_length(ranges[one]) for one in order])
        wanted = dict(zip(addend.axes, zip(box.start, box.stop, strict=True), strict=True))
        cut = [
            slice(wanted[one][0] - ranges[one][0], wanted[one][1] - ranges[one][0]) for one in order
        ]
        result: Array = apart[tuple(cut)].transpose([order.index(one) for one in addend.axes])
        return result


def widened(elements: Array) -> Array:
    """The same numbers in a type of numpy: bfloat16 as float32, without ml_dtypes' loop over elements."""
    if elements.dtype.name != "bfloat16":
        return elements
    bits = elements.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _columns(rank: int) -> int:
    """The columns of a tile, a power of two."""
    return max(1, min(512, 1 << (_MOST_PRODUCTS // (ROWS * rank)).bit_length() - 1))


def _length(pair: tuple[int, int]) -> int:
    return pair[1] - pair[0]


def _flat(axes: str, ranges: Ranges, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Start and number of the rows, or columns, that these axes make together."""
    rest = math.prod(sizes[one] for one in axes[1:])
    return ranges[axes[0]][0] * rest, _length(ranges[axes[0]]) * rest
