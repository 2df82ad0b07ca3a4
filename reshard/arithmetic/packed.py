"""Codes of which several share an element: integers in words of 32 bits, and 4-bit floats in bytes.

The first code of an element has its lowest bits. A weight is ``(code - zero point) × scale`` in float32, rounded to the dtype of the scale where
that is short, and then to the dtype of weights. Scales of 0, infinity and NaN are taken as they are. The exponent 255 of E8M0 is NaN, as the OCP
MX specification has it. A global scale of NVFP4 is applied to the scale of a block first, as engines do: compressed-tensors divides by it,
ModelOpt multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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

WINDOW_ELEMENTS = 1 << 15
"""Arrays of so many numbers are still kept by malloc; the pages of larger ones are filled anew for each window, which takes three times as long."""

_EXPONENTS = ("uint8", "float8_e8m0fnu")
"""The dtypes of scales that are powers of two: the exponent, with 127 added."""

_SHORT = ("bfloat16", "float16")

FLOATS = (*_SHORT, "float32")
"""The dtypes of scales of integers."""

_BLOCK = 32
"""Codes that share a scale in gpt-oss: 16 bytes of blocks."""


def decode_integers(coded: Coded) -> ComputedTensor:
    """Weights of pack-quantized: int4 or int8 in words, with zero points or without; scales for groups or for rows.

    Half of the range is added to codes and to zero points.
    """
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if codes.dtype != "int32" or scale.dtype not in FLOATS:
        raise coded.refused(f"codes of {codes.dtype} with a scale of {scale.dtype} are not known")
    coded.refuse_others("zero_point", "shape", "group_index")
    said = list(_said_groups(coded.config))
    if zeros is None and said and not any(group.get("symmetric", True) for group in said):
        raise coded.refused("the config has 'symmetric' false, but it has no zero points")
    bits, width = _bits_and_width(coded, said)
    lead, groups = codes.shape[:-1], math.prod(scale.shape[-1:])
    if not lead or scale.shape != (*lead, groups) or not groups or width % groups:
        raise coded.misfit("scale")
    packed = (*lead[:-1], -(-lead[-1] * bits // 32), groups)
    if zeros is not None and (zeros.dtype, zeros.shape) != ("int32", packed):
        raise coded.misfit("zero_point")
    each = np.arange(width) // (width // groups)
    if coded.companion("group_index") and not np.array_equal(coded.small("group_index"), each):
        raise coded.refused("its columns are in groups of any order (weight_g_idx)")
    formula = PackedFormula(
        coded.pair.scheme, False, coded.dtype, 32 // bits, -1, (*(1,) * len(lead), width // groups), bits, 0 if zeros else 1 << bits - 1,
        scale.dtype, third="zeros" if zeros else "",
    )  # fmt: skip
    return packed_weight(coded, formula, width, ("zero_point",) if zeros else ())


def _bits_and_width(coded: Coded, said: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Bits of a code, and codes in a row without padding; weight_shape is read only where config and scales leave them open."""
    *lead, words = coded.codes.shape
    groups = math.prod(coded.scale.shape[-1:])
    sizes = [(w["num_bits"], w.get("group_size")) for w in said] or [(4, None), (8, None)]
    fits = {
        (b, groups * n)
        for b, n in sizes
        if type(n) is int and groups > 1 and 0 < -(-groups * n * b // 32) == words
    }
    if len(fits) != 1:
        if "shape" not in coded.pair.companions:
            raise coded.refused("the number of its columns is not known without weight_shape")
        shape = coded.small("shape").ravel().tolist()
        fits = {(b, n) for b, _ in sizes for n in shape[-1:] if n > 0 and -(-n * b // 32) == words}
        if shape[:-1] != lead or not fits:
            raise coded.refused(f"weight_shape is {shape[:8]}, which does not fit words of the shape {[*lead, words]}")  # fmt: skip
    found = min(fits)
    if found[0] not in (4, 8):
        raise coded.refused(f"its codes have {found[0]} bits, and only 4 and 8 are known")
    return found


def _said_groups(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The part about weights of each group in a config that gives bits."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and type(weights.get("num_bits")) is int:
            yield weights


def decode_fp4(coded: Coded) -> ComputedTensor:
    """Weights of mxfp4 and NVFP4, two in a byte: along the last dimension, or along the one before it in ModelOpt's experts of Llama 4.

    Those of gpt-oss become what models in bfloat16 have: codes are (…, outputs, blocks, 16 bytes), weights (…, inputs, outputs).
    """
    codes, scale, whole = coded.codes, coded.scale, coded.companion("global_scale")
    is_mx, is_blocks = scale.dtype in _EXPONENTS, len(scale.shape) == len(codes.shape) - 1
    if codes.dtype != "uint8" or is_mx == (whole is not None):
        raise coded.refused(f"codes of {codes.dtype} with a scale of {scale.dtype} are not known")
    if whole is not None and (whole.dtype != "float32" or math.prod(whole.shape) != 1):
        raise coded.misfit("global_scale")
    if len(scale.shape) < 2 or not 0 <= len(codes.shape) - len(scale.shape) <= 1:
        raise coded.misfit("scale")
    coded.refuse_others("global_scale")
    axis = -1 if is_blocks or codes.shape[:-1] == scale.shape[:-1] else -2
    groups, shape, tile = scale.shape[axis], list(codes.shape), [1] * len(scale.shape)
    shape[axis] = groups
    fits = codes.shape == (*scale.shape, _BLOCK // 2) if is_blocks else scale.shape == tuple(shape)
    width = _BLOCK * groups if is_blocks else 2 * codes.shape[axis]
    if not fits or not groups or width % groups:
        raise coded.misfit("scale")
    tile[axis] = width // groups
    divides = coded.pair.companions.get("global_scale", "").endswith("_global_scale")
    formula = PackedFormula(
        coded.pair.scheme, is_mx, coded.dtype, _BLOCK if is_blocks else 2, axis, tuple(tile), is_float=True,
        third="" if whole is None else "divide" if divides else "multiply", third_rank=len(whole.shape) if whole else 0,
        is_turned=is_blocks, octets=_BLOCK // 2 if is_blocks else 0,
    )  # fmt: skip
    return packed_weight(coded, formula, width, ("global_scale",) if whole else ())


def packed_weight(
    coded: Coded, formula: PackedFormula, width: int, roles: Sequence[str] = ()
) -> ComputedTensor:
    """The weight of packed codes, ``width`` of them along the dimension in which they are packed; ``roles``: of operands behind the scale.

    Turned codes are held, since each window needs some of every row.
    """
    cuts = list(coded.codes.storage.cuts[: len(formula.tile)])
    cuts[formula.axis] = tuple(min(c * formula.count, width) for c in cuts[formula.axis])
    cuts = [cuts[dim] for dim in formula.cut_order]
    operands = [coded.operand(coded.codes.name, is_held=formula.is_turned)]
    operands += [coded.operand(coded.pair.companions[r], is_held=True) for r in ("scale", *roles)]
    return coded.weight(formula, operands, Grid(tuple(of[-1] for of in cuts), tuple(cuts)))


class PackedFormula(Decoding, frozen=True):
    """Packed codes, less their zero points, times their scales.

    Operands are codes and scales, then zero points or a global scale if there are any, then the group of each row of codes if these are listed.

    Attributes:
        count: of codes in an element.
        axis: the dimension along which they are packed, from the end: -1 or -2.
        tile: codes that share a scale along each dimension; 0 for all.
        bits: of a code.
        less: the number by which codes are less than they are stored, besides their zero points.
        rounding: the dtype to which products are rounded, if it is a short one.
        is_float: True for 4-bit floats.
        third: the use of the third operand.
        third_rank: its dimensions.
        zeros_axis: the dimension along which zero points are packed.
        is_turned: True if codes have the last two dimensions of weights in the other order.
        octets: bytes of an element, where they have a dimension of their own; else 0.
        order: the place in an element of each code; () for their order.
        groups: of rows, where an operand lists them; else 0.
        index: the name of that operand.
    """

    count: int
    axis: int
    tile: tuple[int, ...]
    bits: int = 4
    less: int = 0
    rounding: str = ""
    is_float: bool = False
    third: Literal["", "zeros", "multiply", "divide"] = ""
    third_rank: int = 0
    zeros_axis: int = -2
    is_turned: bool = False
    octets: int = 0
    order: tuple[int, ...] = ()
    groups: int = 0
    index: str = ""

    window_elements = WINDOW_ELEMENTS
    scratch_bytes = 32
    fixed_bytes = 4 << 20  # a window has 32 rows of gpt-oss at least

    @property
    def cut_order(self) -> tuple[int, ...]:
        """The dimension of codes that each one of weights is; held codes are so cut into boxes whose rows follow one another."""
        dims = tuple(range(len(self.tile)))
        return (*dims[:-2], dims[-1], dims[-2]) if self.is_turned else dims

    @property
    def grain(self) -> tuple[int, ...]:
        counts = self._counts(self.axis)
        return tuple(counts[dim] for dim in self.cut_order)

    def boxes(self, box: Box) -> Sequence[Box]:
        box = box.permute(self.cut_order)
        codes, scale = shared_box(box, self._counts(self.axis)), shared_box(box, self.tile)
        if self.octets:
            codes = Box((*codes.start, 0), (*codes.stop, self.octets))
        if self.groups:
            scale = Box((0, *scale.start[1:]), (self.groups, *scale.stop[1:]))
        found = [codes, scale]
        if self.third == "zeros":
            found.append(shared_box(scale, self._counts(self.zeros_axis)))
        elif self.third:
            found.append(Box.full((1,) * self.third_rank))
        return [*found, Box(box.start[:1], box.stop[:1])] if self.groups else found

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        box = box.permute(self.cut_order)
        codes, scale, *more = operands
        table = _table(self.bits, self.less, self.is_float)
        numbers = self._unpacked(codes.reshape(*codes.shape[: box.rank - 1], -1), table, self.axis, box)  # fmt: skip
        if scale.dtype == np.uint8:
            scale = scale.view(numpy_dtype("float8_e8m0fnu"))
        factors = scale.astype(np.float32)
        with np.errstate(all="ignore"):
            if self.third == "zeros":
                zeros = self._unpacked(more[0], _table(self.bits), self.zeros_axis, box)
                numbers = numbers - self._spread(zeros, box, more)
            elif self.third:
                whole = more[0].reshape(())
                factors = factors / whole if self.third == "divide" else factors * whole
            numbers = product(numbers, self._spread(factors, box, more))
            if self.rounding in _SHORT:
                numbers = numbers.astype(numpy_dtype(self.rounding))
            numbers = numbers.astype(out.dtype)
        turned_copy(out, numbers.swapaxes(-1, -2) if self.is_turned else numbers)

    def _counts(self, axis: int) -> tuple[int, ...]:
        rank = len(self.tile)
        return tuple(self.count if dim == rank + axis else 1 for dim in range(rank))

    def _unpacked(self, elements: Array, table: Array, axis: int, box: Box) -> Array:
        """The numbers of packed codes, in the places of the elements along ``axis``; of these the part that the box has."""
        octets = np.ascontiguousarray(elements.swapaxes(axis, -1)).view(np.uint8)
        numbers: Array = table.take(octets).view(np.float32)
        if self.order:
            each = numbers.reshape(*numbers.shape[:-1], -1, self.count)
            numbers = each[..., self.order].reshape(numbers.shape)
        first = box.start[axis] % self.count
        return numbers[..., first : first + box.shape[axis]].swapaxes(axis, -1)

    def _spread(self, shared: Array, box: Box, more: Sequence[Array]) -> Array:
        if not self.groups:
            return spread(shared, box, self.tile)
        index = more[-1]
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < self.groups:
            raise FormatError(
                f"{self.index!r} should have groups from 0 to {self.groups - 1}, but has {index.min()} to {index.max()}; restore the file from a copy"
            )
        return shared.take(index, 0)


@lru_cache
def _table(bits: int, less: int = 0, is_float: bool = False) -> Array:
    """The numbers of all bytes: one in each, or two as one integer of 64 bits, so that both are looked up at once."""
    codes = np.arange(1 << bits, dtype=np.uint8)
    numbers = (codes.view(numpy_dtype("float4_e2m1fn")) if is_float else codes).astype(np.float32)
    numbers -= np.float32(less)
    if bits == 8:
        return numbers
    octets = np.arange(256)
    return np.stack([numbers[octets & 15], numbers[octets >> 4]], -1).reshape(-1).view(np.uint64)


def product(numbers: Array, factors: Array) -> Array:
    """Numbers times factors."""
    made: Array = numbers * factors
    if not np.isfinite(factors).all():
        made[np.isnan(made)] = np.nan  # processors disagree about the sign of 0 × inf
    return made


def shared_box(box: Box, tile: Sequence[int]) -> Box:
    """The box of what each ``tile`` of a box shares, such as a scale; 0 is all of a dimension."""
    start = tuple(a // size if size else 0 for a, size in zip(box.start, tile, strict=True))
    stop = tuple(-(-b // size) if size else 1 for b, size in zip(box.stop, tile, strict=True))
    return Box(start, stop)


def spread(shared: Array, box: Box, tile: Sequence[int]) -> Array:
    """The scale of each element of a box, from the scales of ``shared_box``."""
    for dim, size in enumerate(tile):
        if size > 1:
            first = box.start[dim] % size
            part = slice(first, first + box.shape[dim])
            shared = np.repeat(shared, size, dim)[(*(slice(None),) * dim, part)]
    return shared
