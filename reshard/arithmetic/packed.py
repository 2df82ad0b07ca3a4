"""Packed codes of compressed-tensors (pack-quantized, mxfp4, nvfp4), ModelOpt (NVFP4) and gpt-oss (mxfp4).

A global scale of NVFP4 is applied to the scale of a block first, as engines do: compressed-tensors divides by it, ModelOpt multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reshard.arithmetic.coded import Coded
from reshard.arithmetic.packed_formula import PackedFormula, packed_weight
from reshard.formats.computed import ComputedTensor

EXPONENTS = ("uint8", "float8_e8m0fnu")
"""The dtypes of scales that are powers of two: the exponent, with 127 added."""

_BLOCK = 32
"""Codes that share a scale in gpt-oss: 16 bytes of blocks."""


def decode_integers(coded: Coded) -> ComputedTensor:
    """Weights of pack-quantized: int4 or int8 in words, with zero points or without; scales for groups, for rows, or one."""
    codes, scale, zeros = coded.codes, coded.scale, coded.companion("zero_point")
    if codes.dtype != "int32" or scale.dtype not in ("bfloat16", "float16", "float32"):
        raise coded.refused(f"codes of {codes.dtype} with a scale of {scale.dtype} are not known")
    bits, width = _bits_and_width(coded)
    lead, groups = codes.shape[:-1], math.prod(scale.shape[-1:])
    is_one = math.prod(scale.shape) == 1
    if not is_one and (scale.shape[:-1] != lead or not groups or width % groups):
        raise coded.misfit("scale")
    packed = (*lead[:-1], -(-lead[-1] * bits // 32), groups)
    if zeros is not None and (is_one or zeros.dtype != "int32" or zeros.shape != packed):
        raise coded.misfit("zero_point")
    if "group_index" in coded.pair.companions and not np.array_equal(
        coded.small("group_index"), np.arange(width) // (width // groups)
    ):
        raise coded.refused("its columns are in groups of any order (weight_g_idx)")
    tile = (*(0 if is_one else 1 for _ in lead), width // groups if groups > 1 else 0)
    formula = PackedFormula(
        coded.pair.scheme, False, coded.dtype, "int4" if bits == 4 else "int8", 32 // bits, -1, tile, scale.dtype, len(scale.shape),
        third="zeros" if zeros else "",
    )  # fmt: skip
    return packed_weight(coded, formula, width, ("zero_point",) if zeros else ())


def _bits_and_width(coded: Coded) -> tuple[int, int]:
    """Bits of a code, and codes in a row without padding; weight_shape is read only where config and scales leave them open."""
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
            bits = " or ".join(map(str, sorted({b for b, _ in said})))
            raise coded.refused(
                f"weight_shape is {shape[:8]}, which does not fit words of the shape {[*lead, words]} and codes of {bits} bits"
            )
    found = min(fits)
    if found[0] not in (4, 8):
        raise coded.refused(f"its codes have {found[0]} bits, and only 4 and 8 are known")
    return found


def _said_groups(config: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Bits and size of each group in a config, 0 for a size that it does not give."""
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
    if codes.dtype != "uint8" or is_mx == (whole is not None):
        raise coded.refused(f"codes of {codes.dtype} with a scale of {scale.dtype} are not known")
    if whole is not None and math.prod(whole.shape) != 1:
        raise coded.misfit("global_scale")
    axis = -1 if codes.shape[:-1] == scale.shape[:-1] else -2
    width, groups = 2 * codes.shape[axis], scale.shape[axis]
    shape = list(codes.shape)
    shape[axis] = groups
    if tuple(shape) != scale.shape or not groups or width % groups:
        raise coded.misfit("scale")
    tile = [1] * len(shape)
    tile[axis] = width // groups
    divides = coded.pair.companions.get("global_scale", "").endswith("_global_scale")
    formula = PackedFormula(
        coded.pair.scheme, is_mx, coded.dtype, "float4_e2m1fn", 2, axis, tuple(tile), "", len(shape),
        third="" if whole is None else "divide" if divides else "multiply", third_rank=len(whole.shape) if whole else 0,
    )  # fmt: skip
    return packed_weight(coded, formula, width, ("global_scale",) if whole else ())


def _decode_blocks(coded: Coded) -> ComputedTensor:
    """The experts of gpt-oss, as models in bfloat16 have them: codes are (…, outputs, blocks, 16 bytes), weights (…, inputs, outputs)."""
    codes, scale = coded.codes, coded.scale
    is_fit = codes.shape == (*scale.shape, _BLOCK // 2) and len(scale.shape) > 1
    if not is_fit or codes.dtype != "uint8" or scale.dtype not in EXPONENTS:
        raise coded.misfit("scale")
    tile = (*(1,) * (len(scale.shape) - 1), _BLOCK)
    formula = PackedFormula(
        coded.pair.scheme, True, coded.dtype, "float4_e2m1fn", _BLOCK, -1, tile, "", len(tile), is_turned=True, octets=_BLOCK // 2,
    )  # fmt: skip
    return packed_weight(coded, formula, _BLOCK * scale.shape[-1])
