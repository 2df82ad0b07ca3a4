"""Codes of one element each, times a scale: fp8 and small integers, in blocks of any form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from reshard.arithmetic.coded import Coded, Decoding
from reshard.formats.computed import ComputedTensor
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box

_EXPONENTS = ("float8_e8m0fnu", "uint8")


def decode_scaled(coded: Coded) -> ComputedTensor:
    """The weights of codes that have a scale, and maybe a zero point."""
    codes, scale = coded.codes, coded.scale
    axes = tuple(range(len(codes.shape)))
    tile = tuple(
        1 if s == c else 0 if s == 1 else g
        for c, s, g in zip(codes.shape, scale.shape, coded.pair.grain, strict=True)
    )
    formula = ScaledFormula(
        coded.pair.scheme,
        scale.dtype in _EXPONENTS,
        coded.dtype,
        codes.dtype,
        scale.dtype,
        axes,
        tile,
    )
    operands = [coded.operand(codes.name), coded.operand(scale.name, is_held=True)]
    return coded.weight(formula, operands)


class ScaledFormula(Decoding, frozen=True):
    """Code times scale in float32, rounded once.

    Attributes:
        codes, scale: their dtypes.
        axes: the dimension of the codes that each dimension of the scale belongs to.
        tile: codes that share a scale along each dimension of the scale; 0 for all.
    """

    codes: str
    scale: str
    axes: tuple[int, ...]
    tile: tuple[int, ...]

    def boxes(self, box: Box) -> Sequence[Box]:
        sides = [
            (box.start[axis] // size, -(-box.stop[axis] // size)) if size else (0, 1)
            for axis, size in zip(self.axes, self.tile, strict=True)
        ]
        return box, Box(tuple(a for a, _ in sides), tuple(b for _, b in sides))

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        numbers = _table(self.codes)[operands[0].view(np.uint8)]
        scale = operands[1]
        if self.scale in _EXPONENTS:
            scale = scale.view(numpy_dtype("float8_e8m0fnu"))
        scale = scale.astype(np.float32)
        for dim, (axis, size) in enumerate(zip(self.axes, self.tile, strict=True)):
            if size > 1:
                where = np.arange(box.start[axis], box.stop[axis]) // size
                scale = np.take(scale, where - where[0], dim)
        out[...] = numbers * scale


@lru_cache(maxsize=16)
def _table(dtype: str) -> Any:
    """The numbers of all codes of a dtype."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float32)
