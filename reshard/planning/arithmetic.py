"""Arithmetic: what a piece does with each element besides moving it."""

from __future__ import annotations

import math

from msgspec import Struct

_HALF = 0.5


class Arithmetic(Struct, frozen=True, gc=False):
    """``element * multiply / divide + add`` in float32 (float64 for float64), rounded once to the target's dtype."""

    multiply: float = 1.0
    divide: float = 1.0
    add: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether it only moves exponents: factors that are powers of two. Subnormals may still lose bits."""
        factors = (abs(self.multiply), abs(self.divide))
        return not self.add and all(math.frexp(factor)[0] == _HALF for factor in factors)
