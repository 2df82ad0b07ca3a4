"""Codes of which several share an element: integers in words of 32 bits, and 4-bit floats in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reshard.arithmetic.coded import Coded
from reshard.arithmetic.codes_formula import EXPONENTS, FLOATS, CodesFormula
from reshard.arithmetic.sharing import Sharing
from reshard.formats.computed.tensors import ComputedTensor
from reshard.formats.quantized import config_groups
from reshard.geometry.grid import Grid

_BLOCK = 32
"""Codes that share a scale in gpt-oss: 16 bytes of blocks."""


def decode_integers(coded: Coded) -> ComputedTensor:
    """Weights of pack-quantized: int4 or int8 in words, with zero points or without; scales for groups or for rows.

    Half of the range is added to codes and to zero points.
    """
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if codes.dtype != "int32" or scale.dtype not in FLOATS:
        raise coded.unknown()
    coded.refuse_others("zero_point", "shape", "group_index")
    said = [w for w in config_groups(coded.config, "weights").values() if type(w.get("num_bits")) is int]  # fmt: skip
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
    formula = CodesFormula(
        scheme=coded.pair.scheme, exact=False, dtype=coded.dtype, codes=f"uint{bits}", bits=bits, count=32 // bits,
        sharing=Sharing.of_each(*(1,) * len(lead), width // groups), less=0 if zeros else 1 << bits - 1, has_zeros=zeros is not None,
    )  # fmt: skip
    return packed_weight(coded, formula, width, *("zero_point",) * formula.has_zeros)


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


def decode_fp4(coded: Coded) -> ComputedTensor:
    """Weights of mxfp4 and NVFP4, two in a byte: along the last dimension, or along the one before it in ModelOpt's experts of Llama 4.

    Those of gpt-oss become what models in bfloat16 have: codes are (…, outputs, blocks, 16 bytes), weights (…, inputs, outputs).
    """
    codes, scale, whole = coded.codes, coded.scale, coded.companion("global_scale")
    is_mx, is_blocks = scale.dtype in EXPONENTS, len(scale.shape) == len(codes.shape) - 1
    if codes.dtype != "uint8" or is_mx == (whole is not None):
        raise coded.unknown()
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
    formula = CodesFormula(
        scheme=coded.pair.scheme, exact=is_mx, dtype=coded.dtype, codes="float4_e2m1fn", bits=4, count=_BLOCK if is_blocks else 2, axis=axis,
        sharing=Sharing.of_each(*tile), whole="" if whole is None else "divide" if divides else "multiply",
        whole_rank=len(whole.shape) if whole else 0, is_turned=is_blocks, octets=_BLOCK // 2 if is_blocks else 0,
    )  # fmt: skip
    return packed_weight(coded, formula, width, *("global_scale",) * (whole is not None))


def packed_weight(coded: Coded, formula: CodesFormula, width: int, *roles: str) -> ComputedTensor:
    """The weight of packed codes, ``width`` of them along the dimension in which they are packed; ``roles``: of operands behind the scale."""
    cuts = list(coded.codes.storage.cuts[: len(formula.cut_order)])
    cuts[formula.axis] = tuple(min(c * formula.count, width) for c in cuts[formula.axis])
    cuts = [cuts[dim] for dim in formula.cut_order]
    storage = Grid(tuple(of[-1] for of in cuts), tuple(cuts))
    return coded.weight(formula, ("scale", *roles), storage)
