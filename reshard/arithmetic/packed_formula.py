"""PackedFormula: the weights of codes of which several share an element: integers in words of 32 bits, and 4-bit floats in bytes.

The first code of an element has its lowest bits. A weight is ``(code - zero point) × scale`` in float32, rounded to the dtype of the scale where
that is short, and then to the dtype of weights. Scales of 0, infinity and NaN are taken as they are. The exponent 255 of E8M0 is NaN, as the OCP
MX specification has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reshard.arithmetic.coded import Coded, Decoding
from reshard.errors import FormatError
from reshard.formats.computed import ComputedTensor
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box, Grid
from reshard.geometry.turned_copy import turned_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

CodeKind = Literal["int4", "int8", "uint4", "uint8", "float4_e2m1fn"]
"""Signed integers are stored with half of their range added, unsigned ones as they are."""

BITS: Mapping[CodeKind, int] = {"int4": 4, "int8": 8, "uint4": 4, "uint8": 8, "float4_e2m1fn": 4}


def packed_weight(
    coded: Coded, formula: PackedFormula, width: int, roles: Sequence[str] = ()
) -> ComputedTensor:
    """The weight of packed codes, ``width`` of them along the dimension in which they are packed; ``roles``: of operands behind the scale.

    Turned codes are held, since each window needs some of every row.
    """
    rank = len(formula.tile)
    cuts = list(coded.codes.storage.cuts[:rank])
    cuts[formula.axis] = tuple(min(c * formula.count, width) for c in cuts[formula.axis])
    cuts = [cuts[dim] for dim in formula.turn]
    names = [coded.pair.companions[role] for role in ("scale", *roles)]
    operands = [coded.operand(coded.codes.name, is_held=formula.is_turned)]
    operands += [coded.operand(name, is_held=True) for name in names]
    return coded.weight(formula, operands, Grid(tuple(of[-1] for of in cuts), tuple(cuts)))


class PackedFormula(Decoding, frozen=True):
    """Packed codes, less their zero points, times their scales.

    Operands are codes and scales, then zero points or a global scale if there are any, then the group of each row of codes if these are listed.

    Attributes:
        codes: their kind.
        count: of codes in an element.
        axis: the dimension along which they are packed, from the end: -1 or -2.
        tile: codes that share a scale along each dimension; 0 for all.
        rounding: the dtype to which products are rounded; "" for float32.
        scale_rank: dimensions of the scale.
        third: the use of the third operand.
        third_rank: its dimensions.
        zeros_axis: the dimension along which zero points are packed.
        less: the number by which stored zero points are too small.
        is_turned: True if codes have the last two dimensions of weights in the other order.
        octets: bytes of an element, where they have a dimension of their own; else 0.
        order: the place in an element of each code; () for their order.
        groups: of rows, where an operand lists them; else 0.
    """

    codes: CodeKind
    count: int
    axis: int
    tile: tuple[int, ...]
    rounding: str
    scale_rank: int
    third: Literal["", "zeros", "multiply", "divide"] = ""
    third_rank: int = 0
    zeros_axis: int = -2
    less: int = 0
    is_turned: bool = False
    octets: int = 0
    order: tuple[int, ...] = ()
    groups: int = 0

    @property
    def turn(self) -> tuple[int, ...]:
        """The dimension of codes that each one of weights is."""
        dims = tuple(range(len(self.tile)))
        return (*dims[:-2], dims[-1], dims[-2]) if self.is_turned else dims

    @property
    def cut_order(self) -> tuple[int, ...]:
        """Held codes are cut into boxes whose rows follow one another."""
        return self.turn

    @property
    def grain(self) -> tuple[int, ...]:
        counts = self._counts(self.axis)
        return tuple(counts[dim] for dim in self.turn)

    def boxes(self, box: Box) -> Sequence[Box]:
        box = box.permute(self.turn)
        codes, scale = shared_box(box, self._counts(self.axis)), shared_box(box, self.tile)
        if self.octets:
            codes = Box((*codes.start, 0), (*codes.stop, self.octets))
        if self.groups:
            scale = Box((0, *scale.start[1:]), (self.groups, *scale.stop[1:]))
        found = [codes, Box(scale.start[: self.scale_rank], scale.stop[: self.scale_rank])]
        if self.third == "zeros":
            found.append(shared_box(scale, self._counts(self.zeros_axis)))
        elif self.third:
            found.append(Box.full((1,) * self.third_rank))
        return [*found, Box(box.start[:1], box.stop[:1])] if self.groups else found

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        box = box.permute(self.turn)
        codes, scale, *more = operands
        numbers = self._unpacked(codes.reshape(*codes.shape[: box.rank - 1], -1), self.axis, box)
        factors = numbers_of(scale).reshape(*scale.shape, *(1,) * (box.rank - self.scale_rank))
        with np.errstate(all="ignore"):
            if self.third == "zeros":
                zeros = self._unpacked(more[0], self.zeros_axis, box) + np.float32(self.less)
                numbers = numbers - self._spread(zeros, box, more)
            elif self.third:
                whole = numbers_of(more[0]).reshape(())
                factors = factors / whole if self.third == "divide" else factors * whole
            numbers = product(numbers, self._spread(factors, box, more), self.rounding)
            if self.is_turned:
                turned_copy(out, numbers.astype(out.dtype).swapaxes(-1, -2))
            else:
                out[...] = numbers

    def _counts(self, axis: int) -> tuple[int, ...]:
        rank = len(self.tile)
        return tuple(self.count if dim == rank + axis else 1 for dim in range(rank))

    def _unpacked(self, elements: Array, axis: int, box: Box) -> Array:
        """The numbers of packed codes in float32, in the places of the elements along ``axis``; of these the part that the box has."""
        octets = np.ascontiguousarray(elements).view(np.uint8)
        # A pair of numbers is looked up as one integer of 64 bits.
        each = _table(self.codes).take(octets).view(np.float32).reshape(*elements.shape, -1)
        if self.order:
            each = each[..., self.order]
        shape = list(elements.shape)
        shape[axis] = -1
        numbers: Array = (each.swapaxes(-1, -2) if axis == -2 else each).reshape(shape)
        first, count = box.start[axis] % self.count, box.shape[axis]
        return numbers.swapaxes(axis, -1)[..., first : first + count].swapaxes(axis, -1)

    def _spread(self, shared: Array, box: Box, more: Sequence[Array]) -> Array:
        if not self.groups:
            return spread(shared, box, self.tile)
        index = more[-1]
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < self.groups:
            raise FormatError(
                f"g_idx should have groups from 0 to {self.groups - 1}, but has {int(index.min())} to {int(index.max())}; restore the file "
                "from a copy"
            )
        return shared.take(index, 0)


@lru_cache
def _table(kind: CodeKind) -> Array:
    """The numbers of all bytes: one in each, or two."""
    codes = np.arange(1 << BITS[kind], dtype=np.uint8)
    if kind == "float4_e2m1fn":
        numbers = codes.view(numpy_dtype(kind)).astype(np.float32)
    else:
        numbers = codes.astype(np.float32) - (len(codes) // 2 if kind.startswith("int") else 0)
    if BITS[kind] == 8:
        return numbers
    octets = np.arange(256)
    return np.stack([numbers[octets & 15], numbers[octets >> 4]], -1).reshape(-1).view(np.uint64)


def numbers_of(scale: Array) -> Array:
    """Scales in float32; bytes are exponents."""
    if scale.dtype == np.uint8:
        scale = scale.view(numpy_dtype("float8_e8m0fnu"))
    return scale.astype(np.float32)


def product(numbers: Array, factors: Array, rounding: str) -> Array:
    """Numbers times factors, rounded to a short dtype if one is given."""
    made: Array = numbers * factors
    if not np.isfinite(factors).all():
        made[np.isnan(made)] = np.nan  # processors disagree about the sign of 0 × inf
    return made.astype(numpy_dtype(rounding)) if rounding in ("bfloat16", "float16") else made


def shared_box(box: Box, tile: Sequence[int]) -> Box:
    """The box of what each ``tile`` of a box shares, such as a scale; 0 is all of a dimension."""
    start = tuple(a // size if size else 0 for a, size in zip(box.start, tile, strict=True))
    stop = tuple(-(-b // size) if size else 1 for b, size in zip(box.stop, tile, strict=True))
    return Box(start, stop)


def spread(shared: Array, box: Box, tile: Sequence[int]) -> Array:
    """The scale of each element of a box, from the scales of ``shared_box``; 1 in a dimension that shares one."""
    for dim, size in enumerate(tile):
        if size > 1:
            where = np.arange(box.start[dim], box.stop[dim]) // size
            shared = shared.take(where - where[0], dim)
    return shared
