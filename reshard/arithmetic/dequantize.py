"""Dequantize: codes and scales as the weights that they stand for.

Pairs are found by names, dtypes and shapes (``formats/quantized.py``). Each kind of codes has a decoder, which makes the formula of a computed
tensor. Scales and other companions are not seen any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from msgspec import Struct

from reshard.arguments import Dequantized, check_choice
from reshard.arithmetic.coded import KEEP, Coded, Decoding
from reshard.arithmetic.legacy import decode_4bit, decode_words
from reshard.arithmetic.packed import decode_fp4, decode_integers
from reshard.arithmetic.refuse_unknown import refuse_config, refuse_halves
from reshard.arithmetic.scaled import decode_scaled
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.formats.computed.tensors import ComputedChunks, ComputedTensor, computed_reader
from reshard.formats.contents import StoredTensor
from reshard.formats.quantized import quantization
from reshard.geometry.dtypes import PACKED
from reshard.geometry.sizes import format_bytes
from reshard.storage.location import Location

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


class Dequantize(Struct, frozen=True):
    """The weights of a quantised checkpoint, as a Computation.

    Attributes:
        dtype: of the weights.
    """

    dtype: Dequantized

    @classmethod
    def asked(cls, dtype: str) -> Dequantize:
        """As the option gives it; PlanError for another dtype."""
        check_choice("dequantize", dtype, get_args(Dequantized))
        return cls(dtype)  # type: ignore[arg-type] # one of the choices

    @property
    def option(self) -> tuple[str, str]:
        return "dequantize", self.dtype

    @property
    def text(self) -> str:
        return self.dtype

    tensor_bytes = 2000

    def applied(self, base: Reader, root: Location) -> Reader:
        """The checkpoint of the weights, under the names that they have without quantisation.

        Raises PlanError, naming the tensor, for codes without scales, scales without codes, and forms that have no decoder; also for a
        checkpoint without quantised weights.
        """
        del root
        found = quantization(base)
        pairs, config = (found.pairs, found.config or {}) if found else ({}, {})
        companions = {name for pair in pairs.values() for name in pair.companions.values()}
        refuse_halves(base, companions.union(pairs))
        if not pairs:
            raise PlanError(
                f"{base.uri} has no quantised weights; leave this out, or give the checkpoint that has codes and scales (dequantize)"
            )
        refuse_config(base, config)
        computed = {}
        names = base.tensors.keys() - companions - pairs.keys()
        for name, pair in pairs.items():
            coded = Coded(pair, base, config, self.dtype)
            computed[name] = decoder_of(coded)(coded)
            weight = computed[name].stored.spec.name
            if weight in names:
                raise PlanError(
                    f"{base.uri} has both {weight!r} and {name!r}, whose weights would have that name; {KEEP}"
                )
            names.add(weight)
        return computed_reader(base, computed, companions)

    def places(self) -> Iterator[Location]:
        return iter(())

    def state(self) -> Iterator[str]:
        return iter(())


def decoder_of(coded: Coded) -> Decoder:
    """The decoder of codes; PlanError where their kind has none."""
    if coded.codes.name.endswith("qvalue") and coded.codes.dtype not in PACKED:
        return decode_scaled  # of Qwix and AQT, which have a code in each element
    if (decode := DECODERS.get(coded.pair.kind)) is None:
        raise coded.refused(f"no decoder is known for {coded.pair.scheme}")
    return decode


def dequantized(reader: Reader) -> Mapping[str, tuple[str, bool]]:
    """The dequantised weights of an open checkpoint, by name: the scheme of their codes, and True where no weight is rounded.

    A weight to which another computation adds is rounded by that.
    """
    found: dict[str, tuple[str, bool]] = {}
    chunks, changed = reader.chunks, set[str]()
    while isinstance(chunks, ComputedChunks):
        for name, made in chunks.computed.items():
            if isinstance(made.formula, Decoding):
                found[name] = (made.formula.scheme, made.formula.exact and name not in changed)
            changed.add(name)
        chunks = chunks.base.chunks
    return found


def dequantized_text(reader: Reader) -> str:
    """The kinds of codes, how many weights are exact, and the bytes of the checkpoint before and after."""
    found = dequantized(reader)
    kinds = Counter(scheme for scheme, _ in found.values()).items()
    exact = sum(is_exact for _, is_exact in found.values())
    texts = [f"{kind}: {n:,} weight{'s' * (n > 1)}" for kind, n in kinds]
    stored, chunks = reader.tensors, reader.chunks
    while isinstance(chunks, ComputedChunks):
        stored, chunks = chunks.base.tensors, chunks.base.chunks
    return (
        f"{'; '.join(texts)}, {format_bytes(_nbytes(stored))} → {format_bytes(_nbytes(reader.tensors))} as {reader.computed['dequantize']}: "
        f"{exact:,} exact, {len(found) - exact:,} rounded"
    )


def _nbytes(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(tensor.spec.nbytes for tensor in tensors.values())
