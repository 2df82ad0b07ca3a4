"""LoraFormula: a weight with the products of small factors added, in float64, rounded once.

Each axis of a weight is a letter, and "r" is the rank, over which a product is summed. A factor says which axes each of its dimensions joins, the
slowest first, so that one way of computing serves all adapters::

    linear    oi     B = o, r      A = r, i
    experts   eoi    B = o, re     A = er, i
    kernel    abc    A = a, r      B = r, bc
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
    Spans = Mapping[str, tuple[int, int]]

RANK = "r"

_ROWS, _COLUMNS = 32, 128
_MOST_PRODUCTS = 1 << 18
"""Multiplications of a tile: OpenBLAS does so many on the calling thread. More threads of its own only wait for one another."""


class Factor(Struct, frozen=True):
    """A tensor of an adapter: for each of its dimensions, the axes that are joined in it; "" for a dimension of size 1."""

    groups: tuple[str, ...]

    def fits(self, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
        """True if a tensor of that shape has these axes."""
        return tuple(shape) == tuple(math.prod(sizes[one] for one in each) for each in self.groups)

    def box(self, spans: Spans, sizes: Mapping[str, int]) -> Box:
        """The part that holds these spans of axes; of joined axes only the slowest is cut."""
        ends = [
            [end * math.prod(sizes[one] for one in group[1:]) for end in spans[group[0]]]
            if group
            else [0, 1]
            for group in self.groups
        ]
        return Box(tuple(start for start, _ in ends), tuple(stop for _, stop in ends))

    def turned(self, part: Array, order: str, spans: Spans, sizes: Mapping[str, int]) -> Array:
        """The part of ``box`` with the axes in that order."""
        letters = "".join(self.groups)
        slow = {group[:1] for group in self.groups}
        lengths = [spans[one][1] - spans[one][0] if one in slow else sizes[one] for one in letters]
        cut = tuple(slice(None) if one in slow else slice(*spans[one]) for one in letters)
        return part.reshape(lengths)[cut].transpose([letters.index(one) for one in order])


class Addend(Struct, frozen=True, dict=True):
    """The change that an adapter makes to a weight.

    Attributes:
        axes: a letter for each dimension of the weight.
        sizes: of the axes, and of the rank.
        scale: of the product.
        factors: that of the rows and that of the columns; or one, that is added as it is.
        alpha: a tensor of one number that multiplies the scale; None for no such tensor.
        magnitude: the length that each row along axis "o" has in the end (DoRA); None where rows have the lengths that they get.
    """

    axes: str
    sizes: Mapping[str, int]
    scale: float
    factors: tuple[Factor, ...]
    alpha: Factor | None = None
    magnitude: Factor | None = None

    @cached_property
    def operands(self) -> tuple[Factor, ...]:
        """The tensors of the adapter, in the order in which they are read."""
        return (*self.factors, *(one for one in (self.alpha, self.magnitude) if one is not None))

    @cached_property
    def sides(self) -> tuple[str, str, str]:
        """The axes that both factors have, those of rows, and those of columns: a product of matrices for each of the first."""
        first, last = (set("".join(self.factors[at].groups)) for at in (0, -1))
        batch = [one for one in self.axes if one in first & last]
        rows, columns = ([a for a in self.axes if a in s and a not in batch] for s in (first, last))
        return "".join(batch), "".join(rows), "".join(columns)

    @cached_property
    def whole(self) -> set[int]:
        """The dimensions that no window cuts: those of whole rows for a magnitude, and all but the slowest of the rows, and of the columns."""
        _, rows, columns = self.sides
        kept = "o" if self.magnitude is not None else self.axes
        return {
            d for d, a in enumerate(self.axes) if a not in kept or a in rows[1:] or a in columns[1:]
        }

    def spans(self, box: Box) -> dict[str, tuple[int, int]]:
        """The span of each axis in a box of the weight."""
        ends = zip(box.start, box.stop, strict=True)
        return {RANK: (0, self.sizes[RANK]), **dict(zip(self.axes, ends, strict=True))}


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
    def whole(self) -> set[int]:
        """The dimensions that no window cuts."""
        return {dim for addend in self.addends for dim in addend.whole}

    @property
    def grain(self) -> tuple[int, ...]:
        """The rows of a tile."""
        rows = {e.axes.index(one) for e in self.addends for one in e.sides[1][:1]}
        units = (_ROWS if dim in rows else 1 for dim in range(len(self.shape)))
        whole = self.whole
        return tuple(n if d in whole else u for d, (n, u) in enumerate(zip(self.shape, units)))  # noqa: B905  # endless

    @property
    def window_elements(self) -> int:
        first = next((dim for dim, unit in enumerate(self.grain) if unit > 1), 0)
        return max(1 << 16, math.prod(self.grain[first : first + 1] + self.shape[first + 1 :]))

    @property
    def scratch_bytes(self) -> int:
        """Arrays of float64: the base, the product, and as many again with a magnitude or in tiles that a narrow chunk does not fill."""
        return 48

    @property
    def fixed_bytes(self) -> int:
        """The factors of a tile of rows and of all columns in float64, and what fills their last tiles."""
        most = 0
        for each in self.addends:
            columns = math.prod(each.sizes[one] for one in each.sides[2])
            most += 8 * (_ROWS + each.sizes[RANK]) * (columns + 2 * _COLUMNS)
        return most

    def boxes(self, box: Box) -> Sequence[Box]:
        found = [box]
        for addend in self.addends:
            spans = addend.spans(box)
            found += (factor.box(spans, addend.sizes) for factor in addend.operands)
        return found

    def opened(self, where: str, nbytes: int) -> Calculation:
        del where, nbytes
        return _Sum(self)


class _Sum(Calculation):
    """Keeps the columns of the last window in float64: they are the same in most windows of a chunk."""

    def __init__(self, formula: LoraFormula) -> None:
        super().__init__(formula)
        self._lora = formula
        self._columns: dict[int, tuple[object, Array, slice]] = {}
        self._memory: dict[str, Array] = {}

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        if self._lora.is_copied:
            out[...] = operands[0]
            return
        base, rest = self._wide_base(operands[0]), iter(operands[1:])
        values = base
        with np.errstate(all="ignore"):
            for number, addend in enumerate(self._lora.addends):
                mine = [next(rest) for _ in addend.operands]
                values = self._added(number, box, mine, base, values)
        round_into(out, np.ascontiguousarray(values))

    def _wide_base(self, elements: Array) -> Array:
        if elements.dtype.name == "bfloat16":
            bits = self._kept("bits", elements.shape, np.uint32)
            bits[...] = elements.view(np.uint16)
            bits <<= 16
            elements = bits.view(np.float32)
        wide = self._kept("base", elements.shape, np.float64)
        wide[...] = elements
        return wide

    def _kept(self, name: str, shape: Sequence[int], dtype: Any) -> Array:
        """Memory that is used again for the next window: malloc would give it back to the system each time."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = np.empty(size, dtype)
        return self._memory[name][:size].reshape(shape)

    def _added(
        self, number: int, box: Box, operands: list[Array], base: Array, values: Array
    ) -> Array:
        """The values so far with one more addend."""
        addend = self._lora.addends[number]
        magnitude = operands.pop() if addend.magnitude is not None else None
        scale: Any = addend.scale
        if addend.alpha is not None:
            scale = scale * operands.pop().astype(np.float64).reshape(())
        if len(operands) > 1:
            product = self._product(number, box, operands, scale)
        else:
            product = operands[0].astype(np.float64) * scale
        if magnitude is None:
            product += values
            return product
        # The length is that of the base with this product alone, whatever was added before.
        across = tuple(dim for dim, one in enumerate(addend.axes) if one != "o")
        length = np.sqrt(np.square(product + base).sum(axis=across, keepdims=True))
        product += values
        product *= magnitude.astype(np.float64).reshape(length.shape) / length
        return product

    def _product(self, number: int, box: Box, factors: Sequence[Array], scale: Any) -> Array:
        """The product of two factors, in tiles of one size at fixed places: so an element has the same bits in windows of any size."""
        addend = self._lora.addends[number]
        batch, rows, columns = addend.sides
        spans, sizes = addend.spans(box), addend.sizes
        most = _MOST_PRODUCTS // (_ROWS * sizes[RANK])
        size = min(_COLUMNS, 1 << max(1, most.bit_length()) - 1)

        def tiles(which: int, own: str, size: int) -> tuple[Array, slice]:
            """A factor in tiles, with the rank last, and the wanted places in all of them."""
            part = addend.factors[which].turned(factors[which], batch + own + RANK, spans, sizes)
            count = math.prod(part.shape[: len(batch)])
            flat = part.reshape(count, -1, sizes[RANK])
            before = spans[own[0]][0] * math.prod(sizes[one] for one in own[1:]) % size
            wanted = slice(before, before + flat.shape[1])
            padded = np.zeros((count, -(-wanted.stop // size) * size, sizes[RANK]))
            padded[:, wanted] = flat
            return padded.reshape(count, -1, size, sizes[RANK]), wanted

        key = [spans[one] for one in batch + columns]
        if number not in self._columns or self._columns[number][0] != key:
            turned, wide = tiles(1, columns, size)
            self._columns[number] = (
                key,
                np.ascontiguousarray(turned[:, None].swapaxes(-1, -2)),
                wide,
            )
        (left, high), (_, right, wide) = tiles(0, rows, _ROWS), self._columns[number]
        left *= scale
        count, down, across = len(left), left.shape[1], right.shape[2]
        flat = self._kept(f"product {number}", (count, down, _ROWS, across, size), np.float64)
        np.matmul(left[:, :, None], right, out=flat.swapaxes(2, 3))
        order = batch + rows + columns
        found = flat.reshape(count, down * _ROWS, across * size)[:, high, wide]
        found = found.reshape([spans[one][1] - spans[one][0] for one in order])
        result: Array = found.transpose([order.index(one) for one in addend.axes])
        return result
