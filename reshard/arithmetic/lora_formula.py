"""LoraFormula: a weight with the products of small factors added, in float64, rounded once.

Each axis of a weight is a letter, and "r" is the rank, over which a product is summed. A factor says which axes each of its dimensions joins, the
slowest first, so that one way of computing serves all adapters::

    linear    oi     B = o, r      A = r, i
    experts   eoi    B = o, re     A = er, i
    kernel    abc    A = a, r      B = r, bc
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from reshard.arithmetic.rounding import round_into
from reshard.formats.computed.formula import Calculation, Formula
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Role = Literal["a", "b", "bias", "magnitude"]
"""The parts that tensors of an adapter have in a change."""

RANK, ONE = "r", "1"
"""The axes of the rank, and of a dimension of size 1."""

Axes = tuple[str, ...]
"""The axes that are joined in each dimension of a tensor, the slowest first."""

_ROWS, _COLUMNS = 32, 128
_MOST_PRODUCTS = 1 << 18
"""Multiplications of a tile: OpenBLAS does so many on the calling thread. More threads of its own only wait for one another."""


class Addend(Struct, frozen=True, dict=True):
    """The change that an adapter makes to a weight.

    Attributes:
        axes: a letter for each dimension of the weight.
        sizes: of the axes, of the rank, and of ONE.
        scale: of the product.
        operands: for each tensor of the adapter, by its role, the axes that are joined in each of its dimensions. First come the factor of rows
            and that of columns, or a "bias", which is added as it is. A "magnitude" has the length of each row along axis "o" in the end (DoRA).
    """

    axes: str
    sizes: Mapping[str, int]
    scale: float
    operands: Mapping[Role, Axes]

    def shape(self, role: Role) -> tuple[int, ...]:
        """The shape of an operand."""
        return tuple(math.prod(self.sizes[one] for one in each) for each in self.operands[role])

    @cached_property
    def sides(self) -> tuple[str, ...]:
        """The axes that both factors have, those of rows, and those of columns: a product of matrices for each of the first."""
        factors = list(map("".join, self.operands.values()))[:2]
        first, last = set(factors[0]), set(factors[-1])
        parts = first & last, first - last, last - first
        return tuple("".join(one for one in self.axes if one in part) for part in parts)

    @property
    def whole(self) -> set[int]:
        """The dimensions that no window cuts: those of whole rows for a magnitude, and all but the slowest of the rows, and of the columns."""
        _, rows, columns = self.sides
        lengths = self.axes.replace("o", "") if "magnitude" in self.operands else ""
        return set(map(self.axes.index, rows[1:] + columns[1:] + lengths))

    def spans(self, box: Box) -> dict[str, tuple[int, int]]:
        """The span of each axis in a box of the weight."""
        ends = zip(self.axes, zip(box.start, box.stop, strict=True), strict=True)
        return {one: (0, n) for one, n in self.sizes.items()} | dict(ends)

    def boxes(self, box: Box) -> Iterator[Box]:
        """The part of each operand for a box of the weight; of joined axes only the slowest is cut."""
        spans = self.spans(box)
        for groups in self.operands.values():
            inner = (math.prod(self.sizes[one] for one in group[1:]) for group in groups)
            ends = [[n * end for end in spans[g[0]]] for n, g in zip(inner, groups, strict=True)]
            yield Box(tuple(start for start, _ in ends), tuple(stop for _, stop in ends))

    def tiles(self, role: Role, part: Array, own: str, box: Box, size: int) -> tuple[Array, slice]:
        """A factor's part for a box in tiles along its own axes, with the rank last, and the wanted places in all of them."""
        groups, spans, batch = self.operands[role], self.spans(box), self.sides[0]
        letters = "".join(groups).replace(ONE, "")
        slow = {group[0] for group in groups}
        lengths = [spans[a][1] - spans[a][0] if a in slow else self.sizes[a] for a in letters]
        cut = tuple(slice(None) if one in slow else slice(*spans[one]) for one in letters)
        turned = part.reshape(lengths)[cut].transpose(list(map(letters.index, batch + own + RANK)))
        flat = turned.reshape(math.prod(turned.shape[: len(batch)]), -1, self.sizes[RANK])
        before = spans[own[0]][0] * math.prod(self.sizes[one] for one in own[1:]) % size
        wanted = slice(before, before + flat.shape[1])
        tiles = np.zeros((len(flat), -(-wanted.stop // size), size, flat.shape[2]))
        tiles.reshape(len(flat), -1, flat.shape[2])[:, wanted] = flat
        return tiles, wanted


class LoraFormula(Formula, frozen=True):
    """A weight and what is added to it, in order.

    Attributes:
        shape: of the weight.
        addends: their operands follow the weight; none for a weight that takes another's place.
    """

    shape: tuple[int, ...]
    addends: tuple[Addend, ...] = ()

    @property
    def whole(self) -> set[int]:
        """The dimensions that no window cuts."""
        return {dim for addend in self.addends for dim in addend.whole}

    @property
    def grain(self) -> tuple[int, ...]:
        """The rows of a tile."""
        rows = {each.axes.index(one) for each in self.addends for one in each.sides[1][:1]}
        whole = self.whole
        return tuple(
            n if dim in whole else _ROWS if dim in rows else 1 for dim, n in enumerate(self.shape)
        )

    @property
    def window_elements(self) -> int:
        first = next((dim for dim, unit in enumerate(self.grain) if unit > 1), 0)
        return max(1 << 16, math.prod(self.grain[first : first + 1] + self.shape[first + 1 :]))

    @property
    def scratch_bytes(self) -> int:
        """Arrays of float64: the base, two products, and as many again with a magnitude or in tiles that a narrow chunk does not fill."""
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
        return [box, *(part for addend in self.addends for part in addend.boxes(box))]

    def opened(self, where: str, nbytes: int) -> Calculation:
        del where, nbytes
        return _Sum(self)


class _Sum(Calculation):
    """Keeps the columns of the last window in float64: they are the same in most windows of a chunk."""

    def __init__(self, formula: LoraFormula) -> None:
        super().__init__(formula)
        self._lora = formula
        self._columns: dict[int, tuple[object, Array, slice]] = {}
        self._memory: dict[int, Array] = {}

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        base = values = self._kept(-1, box.shape)
        rest = iter(operands[1:])
        with np.errstate(all="ignore"):
            base[...] = operands[0]
            for number, addend in enumerate(self._lora.addends):
                given = dict(zip(addend.operands, rest, strict=False))
                if "bias" in given:
                    product = given["bias"].astype(np.float64) * addend.scale
                else:
                    product = self._product(number, box, given)
                if "magnitude" in given:
                    # The length is that of the base with this product alone, whatever was added before.
                    across = tuple(dim for dim, one in enumerate(addend.axes) if one != "o")
                    length = np.sqrt(np.square(product + base).sum(axis=across, keepdims=True))
                    product += values
                    product *= given["magnitude"].astype(np.float64).reshape(length.shape) / length
                else:
                    product += values
                values = product
        round_into(out, np.ascontiguousarray(values))

    def _kept(self, number: int, shape: Sequence[int]) -> Array:
        """Memory that is used again for the next window: malloc would give it back to the system each time."""
        size = math.prod(shape)
        if number not in self._memory or self._memory[number].size < size:
            self._memory[number] = np.empty(size)
        return self._memory[number][:size].reshape(shape)

    def _product(self, number: int, box: Box, given: Mapping[Role, Array]) -> Array:
        """The product of two factors, in tiles of one size at fixed places: so an element has the same bits in windows of any size."""
        addend = self._lora.addends[number]
        batch, rows, columns = addend.sides
        (of_rows, high_part), (of_columns, wide_part) = list(given.items())[:2]
        most = _MOST_PRODUCTS // (_ROWS * addend.sizes[RANK])
        size = min(_COLUMNS, 1 << max(1, most.bit_length()) - 1)
        spans = addend.spans(box)
        key = [spans[one] for one in batch + columns]
        if number not in self._columns or self._columns[number][0] != key:
            tiles, wide = addend.tiles(of_columns, wide_part, columns, box, size)
            right = np.ascontiguousarray(tiles[:, None].swapaxes(-1, -2))
            self._columns[number] = key, right, wide
        _, right, wide = self._columns[number]
        left, high = addend.tiles(of_rows, high_part, rows, box, _ROWS)
        left *= addend.scale
        count, down, across = len(left), left.shape[1], right.shape[2]
        # Two in turn: a product is added to the one before it.
        flat = self._kept(number % 2, (count, down, _ROWS, across, size))
        np.matmul(left[:, :, None], right, out=flat.swapaxes(2, 3))
        order = batch + rows + columns
        found = flat.reshape(count, down * _ROWS, across * size)[:, high, wide]
        found = found.reshape([spans[one][1] - spans[one][0] for one in order])
        return found.transpose(list(map(order.index, addend.axes)))
