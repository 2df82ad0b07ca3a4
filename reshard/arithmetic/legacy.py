"""Codes of AWQ, GPTQ and bitsandbytes (4 bits), which are read and never written.

AWQ and GPTQ store weights turned, inputs before outputs. bitsandbytes stores one flat row, with a scale for each block of it; scales may be codes,
too. The number of a code times its scale is rounded to float32, and that to the dtype of weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from reshard.arithmetic.coded import Coded, Decoding
from reshard.arithmetic.codes_formula import FLOATS, CodesFormula
from reshard.arithmetic.packed import packed_weight
from reshard.arithmetic.sharing import Sharing
from reshard.formats.computed.tensors import ComputedTensor
from reshard.formats.safe_json import json_value
from reshard.geometry.grid import Box, Grid

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight columns: AWQ stores columns 0, 2, 4, 6, 1, 3, 5, 7."""

_KNOWN = (("AWQ gemm", 4, 0), ("gptq", 4, 1), ("gptq", 8, 1), ("gptq_v2", 4, 0), ("gptq_v2", 8, 0))
"""Formats, the bits of their codes, and the number by which stored zero points are too small."""


def decode_words(coded: Coded) -> ComputedTensor:
    """Weights of AWQ (gemm) or GPTQ: words of AWQ hold outputs, those of GPTQ inputs; the shape of scales tells them apart."""
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if len(codes.shape) != 2 or len(scale.shape) != 2 or scale.dtype not in FLOATS:
        raise coded.misfit("scale")
    coded.refuse_others("zero_point", "group_index")
    index, (groups, outputs) = coded.companion("group_index"), scale.shape
    is_gptq = codes.shape[-1] == outputs
    bits, less = _bits_and_less(coded, is_gptq=is_gptq)
    count = 32 // bits
    inputs = codes.shape[0] * (count if is_gptq else 1)
    is_fit = is_gptq or codes.shape[1] * count == outputs
    if not is_fit or not groups or (index is None and inputs % groups):
        raise coded.misfit("scale")
    fitting = ("int32", (groups, -(-outputs // count)))
    if zeros is None or (zeros.dtype, zeros.shape) != fitting:
        raise coded.refused(f"it has no qzeros of {fitting[0]} and of the shape {list(fitting[1])}")
    if index is None and is_gptq and coded.config.get("desc_act"):
        raise coded.refused("the config has 'desc_act', but it has no g_idx")
    if index is not None and (index.dtype, index.shape) != ("int32", (inputs,)):
        raise coded.misfit("group_index")
    formula = CodesFormula(
        scheme=coded.pair.scheme, exact=False, dtype=coded.dtype, codes=f"uint{bits}", bits=bits, count=count, axis=-2 if is_gptq else -1,
        sharing=Sharing.of_each(0 if index else inputs // groups, 1), less=less, has_zeros=True, zeros_axis=-1, is_turned=True,
        order=() if is_gptq else _AWQ_ORDER, groups=groups if index else 0, index=index.name if index else "",
    )  # fmt: skip
    roles = ("zero_point", "group_index") if index else ("zero_point",)
    return packed_weight(coded, formula, inputs if is_gptq else outputs, *roles)


def _bits_and_less(coded: Coded, *, is_gptq: bool) -> tuple[int, int]:
    """Bits of a code, and the number that zero points lack."""
    version, bits = str(coded.config.get("version", "gemm")).lower(), coded.config.get("bits", 4)
    said = str(coded.config.get("checkpoint_format", "gptq")) if is_gptq else f"AWQ {version}"
    for name, known, less in _KNOWN:
        if (name, known) == (said, bits):
            return known, less
    raise coded.refused(
        f"it has {str(bits)[:40]} bits in the format {said[:40]!r}; known are 4 of 'AWQ gemm', and 4 and 8 of 'gptq' and 'gptq_v2'"
    )


_Count = Annotated[int, Meta(gt=0)]


class _State(Struct, frozen=True):
    """The text beside 4-bit codes of bitsandbytes."""

    shape: Annotated[tuple[_Count, ...], Meta(min_length=1)]
    blocksize: Annotated[int, Meta(gt=0, multiple_of=2)]
    nested_blocksize: _Count = 1
    nested_offset: float = 0.0


def decode_4bit(coded: Coded) -> ComputedTensor:
    """Weights of bitsandbytes in nf4 or fp4; shape and blocks are in a small JSON text beside them."""
    name = coded.pair.companions.get("state")
    if name is None:
        raise coded.refused("it has no quant_state, which gives shape and blocks")
    try:
        text = coded.small("state").tobytes()
        state = msgspec.convert(json_value(text, name), _State)
    except msgspec.ValidationError as error:
        raise coded.refused(f"{name!r} is no quant_state: {error}") from error
    coded.refuse_others("code", "state", "nested_scale", "nested_code")
    nested = state.nested_blocksize if coded.companion("nested_scale") else 0
    blocks = -(-math.prod(state.shape) // state.blocksize)
    shapes = {"scale": [blocks], "code": [16]}
    if nested:
        shapes |= {"nested_scale": [-(-blocks // nested)], "nested_code": [256]}
    for role, shape in {**shapes, "codes": [-(-math.prod(state.shape) // 2), 1]}.items():
        dtype = "uint8" if role == "codes" or (nested and role == "scale") else "float32"
        spec = coded.codes if role == "codes" else coded.companion(role)
        if spec is None or (spec.dtype, list(spec.shape)) != (dtype, shape):
            raise coded.refused(
                f"for its quant_state it should have {role} of {dtype} and of the shape {list(shape)}"
            )
    formula = FlatFormula(
        scheme=coded.pair.scheme, exact=False, dtype=coded.dtype, shape=state.shape, block=state.blocksize, nested=nested,
        offset=state.nested_offset,
    )  # fmt: skip
    return coded.weight(formula, shapes, Grid.whole(state.shape))


class FlatFormula(Decoding, frozen=True, kw_only=True):
    """The number of a code times the scale of its block, over the flat tensor; the first of two codes has the high bits.

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

    window_elements = 1 << 15

    @property
    def grain(self) -> tuple[int, ...]:
        """Windows begin at whole bytes."""
        is_even = self.shape[-1] % 2 == 0
        return (*(1,) * (len(self.shape) - 1), 2) if is_even else (2, *self.shape[1:])

    def boxes(self, box: Box) -> Sequence[Box]:
        flat = self._flat(box)
        codes, scale = flat.in_tiles((2,)), flat.in_tiles((self.block,))
        found = [Box((*codes.start, 0), (*codes.stop, 1)), scale, Box.full((16,))]
        if self.nested:
            found += [scale.in_tiles((self.nested,)), Box.full((256,))]
        return found

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        codes, scale, table, *nested = operands
        flat, octets, sharing = self._flat(box), codes.reshape(-1), Sharing.of_each(self.block)
        each = np.stack([octets >> 4, octets & 15], -1).reshape(-1)
        weights = table.take(each[flat.start[0] % 2 :][: box.size])
        with np.errstate(all="ignore"):
            if self.nested:
                blocks = flat.in_tiles((self.block,))
                factors = Sharing.of_each(self.nested).spread(nested[0], blocks)
                scale = nested[1].take(scale) * factors + np.float32(self.offset)
            sharing.multiply(weights, scale, flat)
            out[...] = weights.reshape(box.shape)

    def _flat(self, box: Box) -> Box:
        """The flat elements of a box, of which one dimension is cut at most, and those before it have one place."""
        first, last = 0, 0
        for a, b, size in zip(box.start, box.stop, self.shape, strict=True):
            first, last = first * size + a, last * size + b - 1
        return Box((first,), (last + 1,))
