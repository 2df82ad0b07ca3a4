"""Codes of one element each, times a scale: fp8 and small integers, in blocks of any form."""

from __future__ import annotations

from reshard.arithmetic.coded import Coded
from reshard.arithmetic.codes_formula import EXPONENTS, FLOATS, CodesFormula
from reshard.arithmetic.sharing import Sharing
from reshard.formats.computed.tensors import ComputedTensor
from reshard.formats.quantized import companion_axes, companion_tile
from reshard.geometry.dtypes import PACKED

_ROWS = ("weight_scale", "weight_scale_inv", "SCB")
"""The names of lists that have a scale for each row, also of a square."""


def decode_scaled(coded: Coded) -> ComputedTensor:
    """The weights of codes that have a scale, and maybe a zero point of the same shape."""
    _refuse_unknown(coded)
    codes, scale, has_zeros = coded.codes, coded.scale, "zero_point" in coded.pair.companions
    formula = CodesFormula(
        scheme=coded.pair.scheme, exact=scale.dtype in EXPONENTS and not has_zeros, dtype=coded.dtype, codes=codes.dtype, sharing=_sharing(coded),
        has_zeros=has_zeros, is_of_127=coded.pair.kind == "int8 of bitsandbytes",
    )  # fmt: skip
    return coded.weight(formula, ("scale", "zero_point") if has_zeros else ("scale",))


def _refuse_unknown(coded: Coded) -> None:
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    coded.refuse_others("zero_point", "format")
    if zeros is not None and zeros.name.endswith("_shift"):  # quanto adds it to products
        raise coded.refused(f"nothing is known to do with {zeros.name!r} for {coded.pair.scheme}")
    if codes.dtype in PACKED or scale.dtype not in (*EXPONENTS, *FLOATS):
        raise coded.unknown()
    if "int" in codes.dtype:
        _refuse_other_integers(coded)
    if zeros is not None and zeros.shape != scale.shape:
        raise coded.refused(
            f"the shape {list(zeros.shape)} of {zeros.name!r} should be that of {scale.name!r}, {list(scale.shape)}"
        )


def _refuse_other_integers(coded: Coded) -> None:
    """Raises PlanError for integers that programs give another meaning under the same names."""
    codes, scale = coded.codes, coded.scale
    if scale.dtype in EXPONENTS:
        # DeepSeek stores pairs of fp4 as int8, and nothing else shows it.
        raise coded.refused(f"{codes.dtype} with powers of two as scales may hold pairs of fp4")
    if scale.name.endswith("weight_scales"):
        raise coded.refused("EETQ stores codes in the order of its kernels")
    if coded.pair.stem == codes.name:
        raise coded.refused("Keras divides codes by such a scale, and others multiply them")


def _sharing(coded: Coded) -> Sharing:
    codes, scale, pair = coded.codes, coded.scale, coded.pair
    tile = companion_tile(pair, "scale", codes, scale)
    if tile is None or tuple(size or 1 for size in tile) != pair.grain:
        raise coded.misfit("scale")
    lists = scale.shape[0] if len(scale.shape) == 1 else 1
    if lists > 1 and codes.shape.count(lists) > 1 and not scale.name.endswith(_ROWS):
        raise coded.refused(
            f"{scale.name!r} has {lists} scales, and codes of the shape {list(codes.shape)} have several dimensions of that size"
        )
    axes = companion_axes(pair, "scale", codes, scale)
    if any(
        axis is not None and codes.shape[axis] < n
        for axis, n in zip(axes, scale.shape, strict=True)
    ):
        raise coded.misfit("scale")  # as packed codes may have it, of which an element has several
    return Sharing(tile, axes)
