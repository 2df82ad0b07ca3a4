"""CodesFormula: ``(code - zero point) × scale``, whatever dtype codes have, and however many of them share an element.

Codes and scales become float32; their product is rounded to the dtype of the scale where that is short, and then to the dtype of the weights, to
nearest even. So a float32 scale gives one rounding of the float32 product to bfloat16, as DeepSeek defines it; a bfloat16 scale gives the bfloat16
weights of compressed-tensors and Qwix, also as float32; a scale that is a power of two gives exact weights, but for the smallest that bfloat16 has.

Scales of 0, infinity and NaN are taken as they are: weights are then 0 or NaN, infinite or NaN, and NaN. A scale of the dtype
float8_e8m0fnu, or the same byte as uint8, is ``2**(byte - 127)``, and NaN for the byte 255, as the OCP MX specification has it. A global scale of
NVFP4 is applied to the scale of a block first, as engines do: compressed-tensors divides by it, ModelOpt multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reshard.arithmetic.coded import Decoding
from reshard.arithmetic.sharing import Sharing
from reshard.errors import FormatError
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box
from reshard.geometry.turned_copy import turned_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

EXPONENTS = ("float8_e8m0fnu", "uint8")
"""The dtypes of scales that are powers of two."""

SHORT = ("bfloat16", "float16")

FLOATS = ("float32", *SHORT)
"""The dtypes of scales of integers."""

INT8_FACTOR = np.float32(7.874015718698502e-3)
"""1 / 127, as bitsandbytes has it: its scale is the largest weight of a row."""


class CodesFormula(Decoding, frozen=True, kw_only=True):
    """Codes, less their zero points, times their scales.

    Operands are codes and scales, then zero points or a global scale if there are any, then the group of each row of codes if these are listed.
    The first code of an element has its lowest bits.

    Attributes:
        codes: the dtype of a code.
        sharing: of the scales.
        count: of codes in an element.
        axis: the dimension along which they are packed, from the end: -1 or -2.
        bits: of a code in an element.
        less: the number by which codes are less than they are stored, besides their zero points.
        has_zeros: True if zero points follow the scales; they are shared alike, and packed if codes are.
        zeros_axis: the dimension along which zero points are packed.
        whole: the use of a global scale.
        whole_rank: its dimensions.
        is_of_127: True if a weight is its code, times scale, divided by 127.
        octets: bytes of an element, where they have a dimension of their own; else 0.
        order: the place in an element of each code; () for their order.
        groups: of rows, where an operand lists them; else 0.
        index: the name of that operand.
    """

    codes: str
    sharing: Sharing
    count: int = 1
    axis: int = -1
    bits: int = 8
    less: int = 0
    has_zeros: bool = False
    zeros_axis: int = -2
    whole: Literal["", "multiply", "divide"] = ""
    whole_rank: int = 0
    is_of_127: bool = False
    octets: int = 0
    order: tuple[int, ...] = ()
    groups: int = 0
    index: str = ""

    scratch_bytes = 32
    fixed_bytes = 4 << 20  # tables; a window has 32 rows of gpt-oss at least

    @property
    def window_elements(self) -> int:
        """As many as fit into a cache of 1 MiB; of packed codes as many as malloc keeps: it takes three times as long to fill new pages."""
        return 1 << 17 if self.count == 1 else 1 << 15

    @property
    def cut_order(self) -> tuple[int, ...]:
        """The dimension of codes that each one of weights is; held codes are so cut into boxes whose rows follow one another."""
        dims = tuple(range(len(self.sharing.tile)))
        return (*dims[:-2], dims[-1], dims[-2]) if self.is_turned else dims

    @property
    def grain(self) -> tuple[int, ...]:
        counts = self._counts(self.axis, len(self.sharing.tile))
        return tuple(counts[dim] for dim in self.cut_order)

    def boxes(self, box: Box) -> Sequence[Box]:
        box = box.permute(self.cut_order)
        codes, scale = box.in_tiles(self._counts(self.axis, box.rank)), self.sharing.box(box)
        if self.octets:
            codes = Box((*codes.start, 0), (*codes.stop, self.octets))
        if self.groups:
            scale = Box((0, *scale.start[1:]), (self.groups, *scale.stop[1:]))
        found = [codes, scale]
        if self.has_zeros:
            found.append(scale.in_tiles(self._counts(self.zeros_axis, scale.rank)))
        elif self.whole:
            found.append(Box.full((1,) * self.whole_rank))
        return [*found, Box(box.start[:1], box.stop[:1])] if self.groups else found

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        box = box.permute(self.cut_order)
        codes, scale, *more = operands
        if self.octets:
            codes = codes.reshape(*codes.shape[:-2], -1)
        numbers = self._unpacked(codes, self.codes, self.less, self.axis, box)
        with np.errstate(all="ignore"):
            factors = self.factors(scale, more)
            if self.has_zeros:
                is_packed = self.count > 1  # then differences are exact in any dtype
                zeros = self._unpacked(more[0], self.codes, 0, self.zeros_axis, box) if is_packed else more[0].astype(np.float32)  # fmt: skip
                numbers -= self.sharing.spread(self._of_rows(zeros, more), box)
                numbers = numbers if is_packed else _rounded(numbers, scale.dtype).astype(np.float32)  # fmt: skip
            self.sharing.multiply(numbers, self._of_rows(factors, more), box)
            if self.is_of_127:
                numbers *= INT8_FACTOR
            numbers = _rounded(numbers, scale.dtype)
            if self.is_turned:
                turned_copy(out, numbers.astype(out.dtype).swapaxes(-1, -2))
            else:
                out[...] = numbers

    def factors(self, scale: Array, more: Sequence[Array] = ()) -> Array:
        """The scales as numbers."""
        if scale.dtype == np.uint8:
            scale = scale.view(numpy_dtype("float8_e8m0fnu"))
        found: Array = scale.astype(np.float32)
        if self.whole:
            whole = more[0].reshape(())
            found = found / whole if self.whole == "divide" else found * whole
        return found

    def _counts(self, axis: int, rank: int) -> tuple[int, ...]:
        return tuple(self.count if dim == rank + axis else 1 for dim in range(rank))

    def _unpacked(self, elements: Array, codes: str, less: int, axis: int, box: Box) -> Array:
        """The numbers of codes, in the places of the elements along ``axis``; of these the part that the box has."""
        if self.count == 1:
            return _numbers(elements, codes, less, self.bits).reshape(elements.shape)
        turned = elements.swapaxes(axis, -1)
        numbers = _numbers(turned, codes, less, self.bits).reshape(*turned.shape[:-1], -1)
        if self.order:
            each = numbers.reshape(*numbers.shape[:-1], -1, self.count)
            numbers = each[..., self.order].reshape(numbers.shape)
        first = box.start[axis] % self.count
        return numbers[..., first : first + box.shape[axis]].swapaxes(axis, -1)

    def _of_rows(self, shared: Array, more: Sequence[Array]) -> Array:
        """Those of each row where groups are listed."""
        if not self.groups:
            return shared
        index = more[-1]
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < self.groups:
            raise FormatError(
                f"{self.index!r} should have groups from 0 to {self.groups - 1}, but has {index.min()} to {index.max()}; restore the file from a copy"
            )
        return shared.take(index, 0)


def _rounded(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers in the dtype of their scales, if that is short."""
    return numbers.astype(dtype) if dtype.name in SHORT else numbers


def _numbers(elements: Array, codes: str, less: int, bits: int) -> Array:
    """The numbers of codes, in a new flat array: two codes at a time, since a look-up takes as long for two as for one."""
    flat = np.ascontiguousarray(elements).reshape(-1).view(np.uint8)
    ones, twos = _tables(codes, less, bits)
    if bits == 4:
        return twos.take(flat).view(np.float32)
    made, even = np.empty(flat.shape, np.float32), flat.size // 2 * 2
    twos.take(flat[:even].view(np.uint16), out=made[:even].view(np.uint64), mode="clip")
    made[even:] = ones[flat[even:]]
    return made


@lru_cache(maxsize=8)
def _tables(codes: str, less: int, bits: int) -> tuple[Array, Array]:
    """The numbers of all codes; and the two numbers of all bytes or of all pairs of bytes, as one integer: 512 KiB at most."""
    ones = np.arange(1 << bits, dtype=np.uint8).view(numpy_dtype(codes)).astype(np.float32)
    ones -= np.float32(less)
    first, second = np.arange(1 << 2 * bits) & (1 << bits) - 1, np.arange(1 << 2 * bits) >> bits
    return ones, np.stack([ones[first], ones[second]], -1).reshape(-1).view(np.uint64)
