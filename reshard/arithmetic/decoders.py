"""DECODERS: the kinds of codes that have a meaning here, each with what makes weights of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reshard.arithmetic.coded import Coded
from reshard.arithmetic.legacy import decode_4bit, decode_words
from reshard.arithmetic.packed import decode_fp4, decode_integers
from reshard.arithmetic.scaled import decode_scaled
from reshard.formats.computed import ComputedTensor
from reshard.geometry.dtypes import PACKED

Decoder = Callable[[Coded], ComputedTensor]
"""Makes the weight of codes; PlanError for a form that it does not know."""

DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(
        ("fp8", "int8", "int4", "int2", "uint4", "uint2", "int8 of bitsandbytes"), decode_scaled
    ),
    "packed integers": decode_integers,
    "mxfp4": decode_fp4,
    "nvfp4": decode_fp4,
    "AWQ or GPTQ": decode_words,
    "4 bits of bitsandbytes": decode_4bit,
}
"""The decoders by the kinds of codes, as ``QuantizedPair.kind`` names them."""


def decoder_of(coded: Coded) -> Decoder:
    """The decoder of codes; PlanError where their kind has none."""
    if coded.codes.name.endswith("qvalue") and coded.codes.dtype not in PACKED:
        return decode_scaled  # of Qwix and AQT, which have a code in each element
    if (decode := DECODERS.get(coded.pair.kind)) is None:
        raise coded.refused(f"no decoder is known for {coded.pair.scheme}")
    return decode
