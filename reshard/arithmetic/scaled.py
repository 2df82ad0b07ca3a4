"""Codes of one element each, times a scale: fp8 and small integers, in blocks of any form.

The value of a code is ``(code - zero point) × scale``. Codes and scales become float32; their product is rounded to the dtype of the scale, and
that to the dtype of the weights, to nearest even. So a float32 scale gives one rounding of the float32 product to bfloat16, as DeepSeek defines
it; a bfloat16 scale gives the bfloat16 weights of compressed-tensors and Qwix, also as float32; a scale that is a power of two gives exact
weights, but for the smallest that bfloat16 has.

Scales of 0, infinity and NaN are taken as they are: weights are then 0 or NaN, infinite or NaN, and NaN. A scale of the dtype
float8_e8m0fnu, or the same byte as uint8, is ``2**(byte - 127)``, and NaN for the byte 255, as the OCP MX specification has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from reshard.arithmetic.coded import Coded, Decoding
from reshard.formats.computed import ComputedTensor
from reshard.geometry.dtypes import PACKED, numpy_dtype
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float32]

_EXPONENTS = ("float8_e8m0fnu", "uint8")
"""Dtypes of scales that are powers of two."""

_FLOATS = ("float32", "bfloat16", "float16")

_INT8_FACTOR = np.float32(7.874015718698502e-3)
"""1 / 127, as bitsandbytes has it: its scale is the largest weight of a row."""

_ROWS = ("weight_scale", "weight_scale_inv", "SCB")
"""The names of lists that have a scale for each row, also of a square."""


def decode_scaled(coded: Coded) -> ComputedTensor:
    """The weights of codes that have a scale, and maybe a zero point of the same shape."""
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    _refuse_unknown(coded)
    axes, tile = _blocks(coded)
    formula = ScaledFormula(
        coded.pair.scheme,
        scale.dtype in _EXPONENTS and zeros is None,
        coded.dtype,
        codes.dtype,
        scale.dtype,
        axes,
        tile,
        len(scale.shape),
        has_zeros=zeros is not None,
        is_of_127=coded.pair.kind == "int8 of bitsandbytes",
    )
    held = [each for each in (scale, zeros) if each is not None]
    operands = [coded.operand(each.name, is_held=True) for each in held]
    return coded.weight(formula, [coded.operand(codes.name), *operands])


def _refuse_unknown(coded: Coded) -> None:
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    coded.refuse_others("zero_point", "format")
    if zeros is not None and zeros.name.endswith("_shift"):  # quanto adds it to products
        raise coded.refused(f"nothing is known to do with {zeros.name!r} for {coded.pair.scheme}")
    if codes.dtype in PACKED or scale.dtype not in (*_EXPONENTS, *_FLOATS):
        raise coded.refused(f"codes of {codes.dtype} with a scale of {scale.dtype} are not known")
    if "int" in codes.dtype:
        _refuse_other_integers(coded)
    if zeros is not None and zeros.shape != scale.shape:
        raise coded.refused(
            f"the shape {list(zeros.shape)} of {zeros.name!r} should be that of {scale.name!r}, {list(scale.shape)}"
        )


def _refuse_other_integers(coded: Coded) -> None:
    """Raises PlanError for integers that programs give another meaning under the same names."""
    codes, scale = coded.codes, coded.scale
    if scale.dtype in _EXPONENTS:
        # DeepSeek stores pairs of fp4 as int8, and nothing else shows it.
        raise coded.refused(f"{codes.dtype} with powers of two as scales may hold pairs of fp4")
    if scale.name.endswith("weight_scales"):
        raise coded.refused("EETQ stores codes in the order of its kernels")
    if coded.pair.stem == codes.name:
        raise coded.refused("Keras divides codes by such a scale, and others multiply them")


def _blocks(coded: Coded) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each dimension of the scale that of the codes, and the number of codes that share a scale; 0 for all."""
    codes, scale, grain = coded.codes.shape, coded.scale.shape, coded.pair.grain
    if math.prod(scale) == 1:
        return (), ()
    axes = (_axis_of_list(coded),) if len(scale) == 1 else tuple(range(len(codes)))[: len(scale)]
    tile = tuple(
        1 if size == codes[axis] else 0 if size == 1 else grain[axis]
        for axis, size in zip(axes, scale, strict=False)  # a scale of more dimensions is refused
    )
    counts = [-(-codes[axis] // size) if size else 1 for axis, size in zip(axes, tile, strict=True)]
    if counts != list(scale):
        raise coded.refused(
            f"the shape {list(scale)} of {coded.scale.name!r} does not fit codes of the shape {list(codes)}"
        )
    return axes, tile


def _axis_of_list(coded: Coded) -> int:
    codes, (count,) = coded.codes.shape, coded.scale.shape
    found = [axis for axis, size in enumerate(codes) if size == count]
    if len(found) > 1 and not coded.scale.name.endswith(_ROWS):
        raise coded.refused(
            f"{coded.scale.name!r} has {count} scales, and codes of the shape {list(codes)} have several dimensions of that size"
        )
    return found[0] if found else max(range(len(codes)), key=codes.__getitem__)


class ScaledFormula(Decoding, frozen=True):
    """Code, less its zero point if there is one, times scale.

    Attributes:
        codes, scale: their dtypes.
        axes: the dimension of the codes that each dimension of the scale belongs to; () for one scale.
        tile: codes that share a scale along each of these; 0 for all.
        scale_rank: of the scale.
        has_zeros: True if a zero point follows the scale.
        is_of_127: True if a weight is its code, times scale, divided by 127.
    """

    codes: str
    scale: str
    axes: tuple[int, ...]
    tile: tuple[int, ...]
    scale_rank: int
    has_zeros: bool
    is_of_127: bool

    fixed_bytes = 1 << 20  # tables

    @property
    def window_elements(self) -> int:
        return 1 << 17  # numbers, codes and weights fit into a cache of 1 MiB

    def boxes(self, box: Box) -> Sequence[Box]:
        sides = [
            (box.start[axis] // size, -(-box.stop[axis] // size)) if size else (0, 1)
            for axis, size in zip(self.axes, self.tile, strict=True)
        ]
        if self.axes:
            part = Box(tuple(a for a, _ in sides), tuple(b for _, b in sides))
        else:
            part = Box.full((1,) * self.scale_rank)
        return (box, part, part) if self.has_zeros else (box, part)

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, scale, *zeros = operands
        with np.errstate(all="ignore"):
            numbers = _numbers(codes, self.codes)
            if self.scale == "uint8":
                scale = scale.view(numpy_dtype("float8_e8m0fnu"))
            for zero in zeros:
                numbers -= self._wide(zero, box)
                self._round(numbers)
            numbers *= self._wide(scale, box)
            if self.is_of_127:
                numbers *= _INT8_FACTOR
            self._round(numbers)
            if not np.isfinite(scale.astype(np.float32)).all():
                numbers[np.isnan(numbers)] = np.nan  # processors disagree about the sign of 0 × inf
            out[...] = numbers

    def _round(self, numbers: Numbers) -> None:
        if self.scale in ("bfloat16", "float16"):
            numbers[...] = numbers.astype(numpy_dtype(self.scale))

    def _wide(self, scale: Any, box: Box) -> Numbers:
        """The scale of each element, with dimensions of size 1 where all of the window share it."""
        wide: Numbers = scale.astype(np.float32)
        shape = [1] * box.rank
        # The last dimension first: rows are then copied whole.
        for dim in reversed(range(len(self.axes))):
            axis, size = self.axes[dim], self.tile[dim]
            if wide.shape[dim] > 1 and size > 1:
                places = np.arange(box.start[axis], box.stop[axis]) // size
                wide = wide.take(places - places[0], dim)
            shape[axis] = wide.shape[dim]
        return wide.reshape(shape)


def _numbers(codes: Any, dtype: str) -> Numbers:
    """The numbers of codes, in a new array: two codes at a time, since a look-up takes as long for two as for one."""
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint8)
    made = np.empty(flat.shape, np.float32)
    ones, twos = _tables(dtype)
    even = flat.size // 2 * 2
    twos.take(flat[:even].view(np.uint16), out=made[:even].view(np.uint64), mode="clip")
    made[even:] = ones[flat[even:]]
    return made.reshape(codes.shape)


@lru_cache(maxsize=4)
def _tables(dtype: str) -> tuple[Numbers, npt.NDArray[np.uint64]]:
    """The numbers of all codes of a dtype; and the pairs of numbers of all pairs of codes, 512 KiB, two numbers in an element."""
    ones = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float32)
    both = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return ones, ones[both].view(np.uint64)
