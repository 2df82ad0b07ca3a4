"""Codes of AWQ, GPTQ and bitsandbytes, which are read and never written.

AWQ and GPTQ store weights turned, inputs first; a product is rounded to the dtype of the scales, as their kernels do, before it becomes a weight.
bitsandbytes stores 4-bit codes as one flat row, and int8 with the largest magnitude of each row. A scale of 0, NaN or infinity gives what
IEEE 754 says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reshard.arithmetic.coded import Coded, Decoding
from reshard.arithmetic.packed import numbers_of, part, shared_box, spread, unpacked
from reshard.errors import FormatError
from reshard.formats.computed import ComputedTensor
from reshard.formats.safe_json import json_value
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box, Grid
from reshard.geometry.turned_copy import turned_copy

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight columns: AWQ stores columns 0, 2, 4, 6, 1, 3, 5, 7."""

_GPTQ_LESS = {"gptq": 1, "gptq_v2": 0}
"""The number by which stored zero points are too small, by ``checkpoint_format``."""


def decode_words(coded: Coded) -> ComputedTensor:
    """Weights of AWQ (gemm) or GPTQ: outputs lie side by side in words of AWQ, inputs in those of GPTQ, and scales tell them apart."""
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if len(codes.shape) != 2 or len(scale.shape) != 2 or codes.dtype != "int32":
        raise coded.misfit("scale")
    groups, outputs = scale.shape
    is_gptq = codes.shape[1] == outputs
    bits, inputs, less = _of_gptq(coded) if is_gptq else (*_of_awq(coded), 0)
    count = 32 // bits
    has_index = "group_index" in coded.pair.companions
    if not groups or (not has_index and inputs % groups):
        raise coded.misfit("scale")
    if zeros is not None and (zeros.dtype, zeros.shape) != ("int32", (groups, outputs // count)):
        raise coded.misfit("zero_point")
    if zeros is None and is_gptq:
        raise coded.refused("it has no qzeros")
    index = coded.companion("group_index")
    if index is not None and (index.dtype, index.shape) != ("int32", (inputs,)):
        raise coded.misfit("group_index")
    rows, columns = codes.storage.cuts
    times = (count, 1) if is_gptq else (1, count)
    cuts = tuple(tuple(c * n for c in of) for of, n in zip((rows, columns), times, strict=True))
    formula = WordsFormula(
        coded.pair.scheme, False, coded.dtype, is_gptq, bits, 0 if has_index else inputs // groups, groups, less, zeros is not None, scale.dtype,
    )  # fmt: skip
    roles = ["scale", *(r for r in ("zero_point", "group_index") if r in coded.pair.companions)]
    names = [codes.name, *(coded.pair.companions[role] for role in roles)]
    operands = [coded.operand(name, is_held=True) for name in names]
    return coded.weight(formula, operands, Grid((outputs, inputs), cuts[::-1]))


def _of_awq(coded: Coded) -> tuple[int, int]:
    """Bits and inputs."""
    if coded.codes.shape[1] * 8 != coded.scale.shape[1]:
        raise coded.misfit("scale")
    version = str(coded.config.get("version", "gemm")).lower()
    if version != "gemm":
        raise coded.refused(
            f"it is of the version {version[:40]!r} of AWQ, and only 'gemm' is known"
        )
    return 4, coded.codes.shape[0]


def _of_gptq(coded: Coded) -> tuple[int, int, int]:
    """Bits, inputs, and the number that zero points lack."""
    said, bits = str(coded.config.get("checkpoint_format", "gptq")), coded.config.get("bits", 4)
    if said not in _GPTQ_LESS:
        raise coded.refused(f"it is of the format {said[:40]!r}; of GPTQ 'gptq' and 'gptq_v2' are known")  # fmt: skip
    if bits not in (4, 8):
        raise coded.refused(f"its codes have {str(bits)[:40]} bits, and of GPTQ 4 and 8 are known")
    return bits, coded.codes.shape[0] * 32 // bits, _GPTQ_LESS[said]


class WordsFormula(Decoding, frozen=True):
    """(code - zero point) * scale, turned: codes have inputs before outputs, weights outputs before inputs.

    Attributes:
        is_gptq: True if words hold inputs, else outputs.
        group: inputs that share a scale; 0 if an operand has the group of each.
        groups: their number.
        less: the number by which stored zero points are too small.
        has_zeros: True if zero points are an operand; else they are the middle of the range.
        rounding: the dtype of products.
    """

    is_gptq: bool
    bits: int
    group: int
    groups: int
    less: int
    has_zeros: bool
    rounding: str

    @property
    def grain(self) -> tuple[int, int]:
        count = 32 // self.bits
        return (1, count) if self.is_gptq else (count, 1)

    @property
    def cut_order(self) -> tuple[int, int]:
        return 1, 0

    def boxes(self, box: Box) -> Sequence[Box]:
        words = shared_box(box, self.grain).permute((1, 0))
        scale = shared_box(box, (1, self.group)).permute((1, 0))
        if not self.group:
            scale = Box((0, scale.start[1]), (self.groups, scale.stop[1]))
        found = [words, scale]
        if self.has_zeros:
            found.append(shared_box(scale, (1, 32 // self.bits)))
        return found if self.group else [*found, Box(box.start[1:], box.stop[1:])]

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        words, scale, *more = operands
        turned, count = box.permute((1, 0)), 32 // self.bits
        numbers = part(self._codes(words, 0 if self.is_gptq else 1), turned, 0 if self.is_gptq else 1, count)  # fmt: skip
        zeros: Any = np.float32(1 << self.bits - 1)
        if self.has_zeros:
            zeros = part(self._codes(more[0], 1), turned, 1, count) + np.float32(self.less)
            zeros = self._of_inputs(zeros, turned, more)
        with np.errstate(all="ignore"):
            numbers = (numbers - zeros) * self._of_inputs(numbers_of(scale), turned, more)
            weights = numbers.astype(numpy_dtype(self.rounding)).astype(out.dtype)
        turned_copy(out, weights.T)

    def _codes(self, words: Array, dim: int) -> Array:
        """The codes of words that lie along a dimension."""
        codes = unpacked(words, "uint4" if self.bits == 4 else "uint8", dim - 2)
        if self.is_gptq:
            return codes
        return codes.reshape(*words.shape, -1)[..., _AWQ_PLACES].reshape(codes.shape)

    def _of_inputs(self, shared: Array, turned: Box, more: Sequence[Array]) -> Array:
        """The scales or zero points of each input."""
        if self.group:
            return spread(shared, turned, (self.group, 1))
        index = more[-1]
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < self.groups:
            raise FormatError(
                f"g_idx should name groups 0 to {self.groups - 1}, but has {int(index.min())} to {int(index.max())}; restore the file from a copy"
            )
        return shared.take(index, 0)


def decode_4bit(coded: Coded) -> ComputedTensor:
    """Weights of bitsandbytes in nf4 or fp4; shape and blocks are in a small JSON text beside them."""
    codes, scale, table = coded.codes, coded.scale, coded.companion("code")
    state = coded.pair.companions.get("state")
    if state is None or table is None or table.shape != (16,):
        raise coded.refused("it has no quant_state or no quant_map of 16 numbers")
    said = json_value(coded.small("state").astype(np.uint8).tobytes(), state)
    said = said if isinstance(said, dict) else {}
    shape, size = said.get("shape"), said.get("blocksize")
    is_shape = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    if not is_shape or not shape or type(size) is not int or size < 2 or size % 2:
        raise coded.refused(f"{state!r} gives no shape and no blocksize")
    count = math.prod(shape)
    is_nested = "nested_scale" in coded.pair.companions
    inner, offset = said.get("nested_blocksize"), said.get("nested_offset")
    if is_nested and not (type(inner) is int and inner > 0 and type(offset) is float):
        raise coded.refused(f"{state!r} gives no nested_blocksize and no nested_offset")
    if codes.shape != (-(-count // 2), 1) or scale.shape != (-(-count // size),):
        raise coded.misfit("scale")
    roles = ["scale", "code"]
    if is_nested:
        nested, numbers = coded.companion("nested_scale"), coded.companion("nested_code")
        if (
            nested is None
            or nested.shape != (-(-scale.shape[0] // inner),)
            or scale.dtype != "uint8"
        ):
            raise coded.misfit("nested_scale")
        if numbers is None or numbers.shape != (256,):
            raise coded.refused("it has no nested_quant_map of 256 numbers")
        roles += ["nested_scale", "nested_code"]
    formula = FlatFormula(
        coded.pair.scheme, False, coded.dtype, tuple(shape), size, inner if is_nested else 0, offset if is_nested else 0.0,
    )  # fmt: skip
    held = [coded.operand(coded.pair.companions[role], is_held=True) for role in roles]
    return coded.weight(formula, [coded.operand(codes.name), *held], Grid.whole(shape))


class FlatFormula(Decoding, frozen=True):
    """A number of a table times the scale of its block, over the flat tensor; the first of two codes has the high bits.

    Attributes:
        shape: of the weight.
        block: codes that share a scale.
        nested: scales that share one of their own, where they are codes, too; else 0.
        offset: of those scales.
    """

    shape: tuple[int, ...]
    block: int
    nested: int
    offset: float

    @property
    def grain(self) -> tuple[int, ...]:
        """Windows begin at whole bytes."""
        last = self.shape[-1]
        return (*(1,) * (len(self.shape) - 1), 2) if last % 2 == 0 else self.shape

    def boxes(self, box: Box) -> Sequence[Box]:
        first, end = self._range(box)
        codes = Box((first // 2, 0), (-(-end // 2), 1))
        scale = shared_box(Box((first,), (end,)), (self.block,))
        if not self.nested:
            return codes, scale, Box((0,), (16,))
        return codes, scale, Box((0,), (16,)), shared_box(scale, (self.nested,)), Box((0,), (256,))

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, scale, table, *nested = operands
        first, end = self._range(box)
        flat = Box((first,), (end,))
        octets = codes.reshape(-1)
        pairs = np.stack([octets >> 4, octets & 15], -1).reshape(-1)[first % 2 :][: end - first]
        with np.errstate(all="ignore"):
            if self.nested:
                factors, numbers = nested
                blocks = shared_box(flat, (self.block,))
                scale = numbers.take(scale) * spread(factors, blocks, (self.nested,))
                scale += np.float32(self.offset)
            out[...] = (table.take(pairs) * spread(scale, flat, (self.block,))).reshape(out.shape)

    def _range(self, box: Box) -> tuple[int, int]:
        """The flat elements of a box, of which only one dimension is cut and those before it have one place."""
        last = tuple(n - 1 for n in box.stop)
        return self._place(box.start), self._place(last) + 1

    def _place(self, index: Sequence[int]) -> int:
        place = 0
        for at, size in zip(index, self.shape, strict=True):
            place = place * size + at
        return place


def decode_int8(coded: Coded) -> ComputedTensor:
    """Weights of bitsandbytes in int8, in rows: code * SCB, and that by 1/127, each rounded to float32."""
    codes, scale = coded.codes, coded.scale
    if len(codes.shape) != 2 or scale.shape != codes.shape[:1]:
        raise coded.misfit("scale")
    if "format" in coded.pair.companions and coded.small("format").any():
        raise coded.refused("its codes are in an order for one kind of GPU (weight_format)")
    operands = [coded.operand(codes.name), coded.operand(scale.name, is_held=True)]
    return coded.weight(RowsFormula(coded.pair.scheme, False, coded.dtype), operands)


class RowsFormula(Decoding, frozen=True):
    """int8 times the largest magnitude of its row, which stands for 127."""

    def boxes(self, box: Box) -> Sequence[Box]:
        return box, Box(box.start[:1], box.stop[:1])

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, largest = operands
        with np.errstate(all="ignore"):
            products = codes.astype(np.float32) * largest.astype(np.float32)[:, None]
            out[...] = products * np.float32(1 / 127)


DECODERS: Mapping[str, Callable[[Coded], ComputedTensor]] = {
    "AWQ or GPTQ": decode_words,
    "4 bits of bitsandbytes": decode_4bit,
    "int8 of bitsandbytes": decode_int8,
}
