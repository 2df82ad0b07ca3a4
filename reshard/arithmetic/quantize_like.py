"""QuantizeLike: weights as codes again, with the scales that another checkpoint has stored.

A code is the nearest to weight over scale, so that the weights that are dequantised of a checkpoint give its codes back. Scales and other
companions are copied. No scale is computed: engines do that when they load weights, and a calibration needs the data that the model is run
on; here the scales are those that the engine is known to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import path_of
from reshard.arithmetic.average import SameFormula
from reshard.arithmetic.coded import Coded, weight_name
from reshard.arithmetic.codes_formula import FLOATS, INT8_FACTOR, CodesFormula
from reshard.arithmetic.dequantize import decoder_of
from reshard.arithmetic.refuse_unknown import refuse_config
from reshard.arithmetic.scaled import decode_scaled
from reshard.errors import PlanError, VerificationError
from reshard.formats.base import Reader
from reshard.formats.computed.formula import Formula
from reshard.formats.computed.tensors import (
    ComputedTensor,
    Operand,
    computed_reader,
    computed_tensor,
)
from reshard.formats.quantized import quantization
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Box
from reshard.storage.location import Location, locate, real_text

if TYPE_CHECKING:
    from reshard.arguments import Path

_REMEDY = "leave this out, or give a checkpoint with codes of one element each and a scale (quantize_like)"


class QuantizeLike(Struct, frozen=True):
    """The weights of a checkpoint as codes, as a Computation.

    Attributes:
        like: the checkpoint that has the scales.
    """

    like: Location

    @classmethod
    def asked(cls, like: Path) -> QuantizeLike:
        """As the option gives it."""
        return cls(locate(path_of("checkpoint to quantise like", like)))

    @property
    def option(self) -> tuple[str, str]:
        return "quantize_like", str(self.like)

    @property
    def text(self) -> str:
        return real_text(self.like)

    tensor_bytes = 6000  # an entry in the other checkpoint, and up to three companions

    def applied(self, base: Reader, root: Location) -> Reader:
        """The checkpoint with the names, dtypes and scales of the other one.

        Raises PlanError, naming the tensor, where tensors are missing on either side or have other shapes, and for codes of several in an
        element; for another checkpoint without quantised weights.
        """
        del root
        like = open_reader(str(self.like))
        found = quantization(like)
        if found is None or not found.pairs:
            raise PlanError(
                f"{like.uri} has no quantised weights; give a checkpoint that has codes and scales (quantize_like)"
            )
        config = found.config or {}
        refuse_config(like, config, _REMEDY)
        companions = {name for pair in found.pairs.values() for name in pair.companions.values()}
        names = {weight_name(pair): pair.name for pair in found.pairs.values()}
        names |= {name: name for name in like.tensors if name not in companions.union(found.pairs)}
        _refuse_missing(base, like, names)
        computed = {}
        for name, its in names.items():
            pair = found.pairs.get(its)
            codes = None if pair is None else _Codes(pair, like, config, "float32")
            if (made := _nearest(base, name, like, its, codes)) is not None:
                computed[name] = made
        copied = [Operand.of(like, name) for name in like.tensors if name in companions]
        specs = [replace(one.stored.spec, chunk_shape=None, layout=None) for one in copied]
        added = [computed_tensor(s, SameFormula(s.name, (like.uri,)), [o]) for s, o in zip(specs, copied, strict=True)]  # fmt: skip
        return computed_reader(base, computed, added=added)

    @property
    def places(self) -> tuple[Location]:
        return (self.like,)


class _Codes(Coded, frozen=True, eq=False):
    """The codes that weights are to become."""

    def refused(self, reason: str) -> PlanError:
        return PlanError(f"nothing can be quantised like {self.pair.name!r} of {self.reader.uri}: {reason}; {_REMEDY}")  # fmt: skip


def _refuse_missing(base: Reader, like: Reader, names: dict[str, str]) -> None:
    lacking = [name for name in names if name not in base.tensors]
    more = [name for name in base.tensors if name not in names]
    for found, has, other in ((lacking, like, base), (more, base, like)):
        if found:
            some = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
            raise PlanError(
                f"{other.uri} has no {found[0]!r}{some}, which {has.uri} has, so they are not of one model; give a checkpoint of the same model, "
                "or leave out what is too much (quantize_like, drop)"
            )


def _nearest(
    base: Reader, name: str, like: Reader, its: str, codes: _Codes | None
) -> ComputedTensor | None:
    """A weight as codes, or a plain tensor in the dtype that it has in the other checkpoint; None where it has that already."""
    source, wanted = base.tensors[name].spec, like.tensors[its].spec
    decoding, scale = (None, ()) if codes is None else _decoding(codes, source.dtype)
    if source.shape != wanted.shape:
        raise PlanError(
            f"{name!r} has the shape {list(source.shape)}, but {list(wanted.shape)} in {like.uri}; give a checkpoint of the same model "
            "(quantize_like)"
        )
    if codes is None and source.dtype == wanted.dtype:
        return None
    if source.dtype not in FLOATS or (codes is None and wanted.dtype not in FLOATS):
        raise PlanError(
            f"{name!r} is {source.dtype}, but {wanted.dtype} in {like.uri}; expected one of {', '.join(FLOATS)}; cast it in a conversion of its own "
            "first (cast)"
        )
    spec = replace(source, name=its, dtype=wanted.dtype, chunk_shape=None)
    formula = NearestFormula(name, like.uri, wanted.dtype, decoding)
    return computed_tensor(spec, formula, [Operand.of(base, name), *scale])


def _decoding(codes: _Codes, dtype: str) -> tuple[CodesFormula, Sequence[Operand]]:
    """The formula and the scale of codes; PlanError where weights in ``dtype`` do not tell the codes."""
    if decoder_of(codes) is not decode_scaled:
        raise codes.refused(f"{codes.pair.scheme} is not among the forms that are written")
    weight = decode_scaled(codes)
    formula = weight.formula
    assert isinstance(formula, CodesFormula)  # noqa: S101  it makes no other
    if formula.has_zeros or formula.codes == "uint8":
        raise codes.refused("two codes that are far from their zero point may be one weight")
    if (formula.codes, codes.scale.dtype, dtype) == ("int8", "float16", "bfloat16"):
        why = "with scales in float16 two codes may be one weight in bfloat16; or take weights in float32"
        raise codes.refused(why)
    return formula, weight.operands[1:]


class NearestFormula(Formula, frozen=True):
    """The code that is nearest to weight over scale, in float32; of two that are as near, the even one.

    Attributes:
        name: of the weight, for messages.
        like: the checkpoint that has the scales, for messages.
        dtype: of the codes.
        decoding: makes weights of them; None for a tensor without scales, which is only cast.
    """

    name: str
    like: str
    dtype: str
    decoding: CodesFormula | None

    scratch_bytes = 24

    def boxes(self, box: Box) -> Sequence[Box]:
        return (box,) if self.decoding is None else self.decoding.boxes(box)

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        """Raises VerificationError for weights that are larger than the largest code times scale."""
        with np.errstate(all="ignore"):
            numbers = weights = operands[0].astype(np.float32)
            if self.decoding is not None:
                numbers = _over_scale(weights, operands[1], box, self.decoding)
            if "int" in self.dtype:
                numbers, ends = np.rint(numbers), ml_dtypes.iinfo(out.dtype)  # type: ignore[no-untyped-call]
                lost = ~((numbers >= int(ends.min)) & (numbers <= int(ends.max)))
                out[...] = np.where(lost, 0, numbers)
            else:
                out[...] = numbers
                lost = np.isnan(out) != np.isnan(weights)
                lost |= np.isfinite(out) != np.isfinite(weights)
        if lost.any():
            raise VerificationError(
                f"{self.name!r}: {int(lost.sum()):,} of the {box.size:,} values in {box} do not fit {self.dtype} with the scales of {self.like}: "
                f"the first is {weights[lost][0]:g}; weights that moved so far need scales of their own: quantise them with the program that made "
                "these, or let the engine do it as it loads them (quantize_like)"
            )


def _over_scale(weights: Any, scale: Any, box: Box, decoding: CodesFormula) -> Any:
    wide = decoding.sharing.spread(decoding.factors(scale), box)
    wide = wide * (INT8_FACTOR if decoding.is_of_127 else np.float32(1))
    found = weights / wide
    # A scale of 0 makes zeros of all codes, and 0 / 0 is none.
    return np.where((weights == 0) & np.isnan(found), weights, found)
