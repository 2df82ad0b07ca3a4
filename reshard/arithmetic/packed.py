"""Codes of which several share an element: integers in words of 32 bits, and 4-bit floats in bytes.

The first code of an element has its lowest bits. Layouts are those of compressed-tensors (pack-quantized, mxfp4, nvfp4), ModelOpt (NVFP4) and
gpt-oss (mxfp4). Products are computed in float32 and rounded once. A scale of 0, NaN or infinity gives what IEEE 754 says; the exponent
255 of E8M0 is NaN, as the standard of MX formats has it. A global scale of NVFP4 is applied to the scale of a block first, as engines do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reshard.arithmetic.coded import Coded, Decoding
from reshard.formats.computed import ComputedTensor
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box, Grid
from reshard.geometry.turned_copy import turned_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

CodeKind = Literal["int4", "int8", "uint4", "uint8", "float4_e2m1fn"]
"""Integers of pack-quantized are stored with half of their range added; unsigned ones are stored as they are."""

BITS: Mapping[CodeKind, int] = {"int4": 4, "int8": 8, "uint4": 4, "uint8": 8, "float4_e2m1fn": 4}

EXPONENTS = ("uint8", "float8_e8m0fnu")
"""The dtypes of scales that are powers of two: the exponent, with 127 added."""

_BLOCK = 32
"""Codes that share a scale in gpt-oss: 16 bytes of blocks."""


def decode_integers(coded: Coded) -> ComputedTensor:
    """Weights of pack-quantized: int4 or int8 in words, with zero points or without; scales for groups, for rows, or one."""
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if codes.dtype != "int32" or scale.dtype in EXPONENTS:
        raise coded.refused(f"nothing is known of {codes.dtype} codes with scales of {scale.dtype}")
    bits, width = _bits_and_width(coded)
    lead, groups = codes.shape[:-1], scale.shape[-1] if scale.shape else 1
    is_one = math.prod(scale.shape) == 1
    if not is_one and (scale.shape[:-1] != lead or not groups or width % groups):
        raise coded.misfit("scale")
    tile = (*(0 if is_one else 1 for _ in lead), width // groups if groups > 1 else 0)
    packed = (*lead[:-1], -(-lead[-1] * bits // 32), groups)
    if zeros is not None and (is_one or zeros.dtype != "int32" or zeros.shape != packed):
        raise coded.misfit("zero_point")
    if "group_index" in coded.pair.companions:
        found = coded.small("group_index")
        if not np.array_equal(found, np.arange(width) // (width // groups)):
            raise coded.refused("its columns are in groups of any order (weight_g_idx)")
    kind: CodeKind = "int4" if bits == 4 else "int8"
    is_short = scale.dtype in ("bfloat16", "float16")
    exact = is_short and coded.dtype == "float32"
    return _decoded(coded, kind, exact, -1, width, tile, "zero_point" if zeros else "")


def _bits_and_width(coded: Coded) -> tuple[int, int]:
    """Bits of a code, and codes in a row without padding; the shape is read only where the config leaves them open."""
    *lead, words = coded.codes.shape
    said = set(_said_groups(coded.config)) or {(4, 0), (8, 0)}
    groups = math.prod(coded.scale.shape[-1:])
    fits = {(b, groups * n) for b, n in said if groups > 1 and -(-groups * n * b // 32) == words}
    if len(fits) != 1:
        if "shape" not in coded.pair.companions:
            raise coded.refused("the number of its columns is not known without weight_shape")
        shape = coded.small("shape").ravel().tolist()
        fits = {(b, n) for b, _ in said for n in shape[-1:] if n > 0 and -(-n * b // 32) == words}
        if shape[:-1] != lead or not fits:
            raise coded.refused(
                f"weight_shape is {shape}, which does not fit {list(coded.codes.shape)} words with codes of {' or '.join(map(str, sorted({b for b, _ in said})))} bits"
            )
    bits, width = min(fits)
    if bits not in (4, 8):
        raise coded.refused(f"its codes have {bits} bits, and only 4 and 8 are known")
    return bits, width


def _said_groups(config: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Bits and size of the groups in a config, 0 for a size that it does not give."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and type(bits := weights.get("num_bits")) is int:
            size = weights.get("group_size")
            yield bits, size if type(size) is int and size > 0 else 0


def decode_fp4(coded: Coded) -> ComputedTensor:
    """Weights of mxfp4 and NVFP4, two in a byte: along the last dimension, or along the one before it in ModelOpt's experts of Llama 4."""
    codes, scale, whole = coded.codes, coded.scale, coded.companion("global_scale")
    if len(scale.shape) == len(codes.shape) - 1:
        return _decode_blocks(coded)
    is_mx = scale.dtype in EXPONENTS
    axis = -1 if codes.shape[:-1] == scale.shape[:-1] else -2
    width, groups = 2 * codes.shape[axis], scale.shape[axis]
    others = [shape[:axis] + shape[len(shape) + axis + 1 :] for shape in (codes.shape, scale.shape)]
    if others[0] != others[1] or not groups or width % groups:
        raise coded.misfit("scale")
    if is_mx != (whole is None) or (whole is not None and math.prod(whole.shape) != 1):
        raise coded.refused(f"nothing is known of 4-bit floats with scales of {scale.dtype} and {'no' if whole is None else 'such'} global scales")  # fmt: skip
    tile = tuple(width // groups if d - len(codes.shape) == axis else 1 for d in range(len(codes.shape)))  # fmt: skip
    return _decoded(coded, "float4_e2m1fn", is_mx, axis, width, tile, "global_scale" if whole else "")  # fmt: skip


def _decoded(
    coded: Coded, kind: CodeKind, exact: bool, axis: int, width: int, tile: Sequence[int], last: str
) -> ComputedTensor:
    """The weight of codes along ``axis``; ``last``: the role of the operand beside codes and scale, "" for none."""
    codes = coded.codes
    count = 8 * codes.itemsize // BITS[kind]
    dim = len(codes.shape) + axis
    cuts = [tuple(min(c * count, width) for c in of) if d == dim else of for d, of in enumerate(codes.storage.cuts)]  # fmt: skip
    name = coded.pair.companions.get(last, "")
    divides = last == "global_scale" and name.endswith(
        "_global_scale"
    )  # ModelOpt's is the reciprocal
    third = coded.companion(last)
    formula = PackedFormula(
        coded.pair.scheme, exact, coded.dtype, kind, count, axis, tuple(tile), len(coded.scale.shape),
        "zeros" if last == "zero_point" else "divide" if divides else "multiply" if last else "",
        len(third.shape) if third else 0,
    )  # fmt: skip
    operands = [coded.operand(codes.name), coded.operand(coded.scale.name, is_held=True)]
    operands += [coded.operand(name, is_held=True)] if last else []
    shape = tuple(of[-1] for of in cuts)
    return coded.weight(formula, operands, Grid(shape, tuple(cuts)))


class PackedFormula(Decoding, frozen=True):
    """Codes that are packed along a dimension, less their zero points, times their scales.

    Attributes:
        codes: their kind.
        count: of codes in an element.
        axis: the dimension along which they are packed, from the end.
        tile: codes that share a scale along each dimension; 0 for all.
        scale_rank: dimensions of the scale.
        last: the use of a third operand: zero points, which are packed along the dimension before the last, or a factor or divisor of all scales.
        last_rank: its dimensions.
    """

    codes: CodeKind
    count: int
    axis: int
    tile: tuple[int, ...]
    scale_rank: int
    last: Literal["", "zeros", "multiply", "divide"]
    last_rank: int

    @property
    def grain(self) -> tuple[int, ...]:
        dim = len(self.tile) + self.axis
        return tuple(self.count if d == dim else 1 for d in range(len(self.tile)))

    def boxes(self, box: Box) -> Sequence[Box]:
        scale = shared_box(box, self.tile)
        found = [shared_box(box, self.grain), Box(scale.start[: self.scale_rank], scale.stop[: self.scale_rank])]  # fmt: skip
        if self.last == "zeros":
            found.append(shared_box(scale, (*(1,) * (box.rank - 2), self.count, 1)))
        elif self.last:
            found.append(Box((0,) * self.last_rank, (1,) * self.last_rank))
        return found

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, scale, *last = operands
        dim = box.rank + self.axis
        numbers = part(unpacked(codes, self.codes, self.axis), box, dim, self.count)
        factors = numbers_of(scale).reshape(*scale.shape, *(1,) * (box.rank - self.scale_rank))
        with np.errstate(all="ignore"):
            if self.last == "zeros":
                rows = unpacked(last[0], self.codes, -2)
                zeros = part(rows, box, box.rank - 2, self.count)
                numbers = numbers - spread(zeros, box, self.tile)
            elif self.last:
                whole = numbers_of(last[0]).reshape(())
                factors = factors / whole if self.last == "divide" else factors * whole
            out[...] = numbers * spread(factors, box, self.tile)


def _decode_blocks(coded: Coded) -> ComputedTensor:
    """The experts of gpt-oss, as models in bfloat16 have them: blocks lie in rows of outputs, weights in rows of inputs."""
    codes, scale = coded.codes, coded.scale
    if codes.shape[:-1] != scale.shape or codes.shape[-1] != _BLOCK // 2 or scale.dtype not in EXPONENTS:  # fmt: skip
        raise coded.misfit("scale")
    *lead, rows, blocks, _ = codes.storage.cuts
    cuts = (*lead, tuple(_BLOCK * c for c in blocks), rows)
    operands = [coded.operand(n, is_held=True) for n in (codes.name, scale.name)]
    formula = BlocksFormula(coded.pair.scheme, True, coded.dtype, len(cuts))
    return coded.weight(formula, operands, Grid(tuple(c[-1] for c in cuts), cuts))


class BlocksFormula(Decoding, frozen=True):
    """mxfp4 in blocks of 32 (experts, outputs, blocks, 16 bytes), as weights (experts, inputs, outputs)."""

    rank: int

    @property
    def grain(self) -> tuple[int, ...]:
        return (*(1,) * (self.rank - 2), _BLOCK, 1)

    @property
    def cut_order(self) -> tuple[int, ...]:
        return (*range(self.rank - 2), self.rank - 1, self.rank - 2)

    def boxes(self, box: Box) -> Sequence[Box]:
        turned = shared_box(box, self.grain).permute(self.cut_order)
        return Box((*turned.start, 0), (*turned.stop, _BLOCK // 2)), turned

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, scale = operands
        numbers = unpacked(codes, "float4_e2m1fn", -1)
        with np.errstate(all="ignore"):
            numbers *= numbers_of(scale)[..., None]
            rows = numbers.astype(out.dtype).reshape(*scale.shape[:-1], -1)
        turned_copy(out, part(rows.swapaxes(-1, -2), box, self.rank - 2, _BLOCK))


def unpacked(elements: Array, kind: CodeKind, axis: int) -> Array:
    """The numbers of packed codes in float32, in the places of the elements along ``axis``, which is -1 or -2."""
    octets = np.ascontiguousarray(elements).view(np.uint8)
    # A pair of numbers is looked up as one integer of 64 bits.
    numbers: Array = _table(kind).take(octets).view(np.float32)
    if axis == -1:
        return numbers
    *lead, rows, columns = elements.shape
    each = numbers.reshape(*lead, rows, columns, -1)
    return each.swapaxes(-1, -2).reshape(*lead, -1, columns)


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
    """Scales in float32."""
    if scale.dtype == np.uint8:
        scale = scale.view(numpy_dtype("float8_e8m0fnu"))
    return scale.astype(np.float32)


def shared_box(box: Box, tile: Sequence[int]) -> Box:
    """The box of what each ``tile`` shares: elements with several codes, or scales; 0 is a whole dimension."""
    start = tuple(a // size if size else 0 for a, size in zip(box.start, tile, strict=True))
    stop = tuple(-(-b // size) if size else 1 for b, size in zip(box.stop, tile, strict=True))
    return Box(start, stop)


def spread(shared: Array, box: Box, tile: Sequence[int]) -> Array:
    """What each element of a box has of ``shared``, an array of the shape of ``shared_box``; dimensions of one for all stay so."""
    for dim, size in enumerate(tile):
        if size > 1:
            where = np.arange(box.start[dim], box.stop[dim]) // size
            shared = shared.take(where - where[0], dim)
    return shared


def part(numbers: Array, box: Box, dim: int, count: int) -> Array:
    """The part of whole elements of ``count`` codes that a box has along a dimension."""
    first = box.start[dim] % count
    where = [slice(None)] * numbers.ndim
    where[dim] = slice(first, first + box.shape[dim])
    return numbers[tuple(where)]


DECODERS: Mapping[str, Callable[[Coded], ComputedTensor]] = {
    "packed integers": decode_integers,
    "mxfp4": decode_fp4,
    "nvfp4": decode_fp4,
}
