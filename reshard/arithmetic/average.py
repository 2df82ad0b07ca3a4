"""The formulas of a merge: the weighted average of a tensor of several checkpoints, and the tensor that they all have.

A sum is of float64, with weights of float64, and is rounded once to the dtype of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reshard.arithmetic.rounding import round_into
from reshard.errors import VerificationError
from reshard.formats.formula import Calculation, Formula
from reshard.geometry.grid import Box


class AverageFormula(Formula, frozen=True):
    """``sum(weight * x) / divisor``, or ``base + scale * sum(weight * (x - base)) / divisor``; with a base, that is the first operand."""

    weights: tuple[float, ...]
    divisor: float = 1.0
    has_base: bool = False
    scale: float = 1.0

    window_elements = 1 << 18
    scratch_bytes = 24

    def boxes(self, box: Box) -> Sequence[Box]:
        return (box,) * (len(self.weights) + self.has_base)

    def opened(self, where: str, nbytes: int) -> Calculation:
        del where, nbytes
        return _Sums(self)


class _Sums(Calculation):
    """The sums of a window, in memory that every window of a chunk uses again: to fill new pages took twice as long (measured)."""

    def __init__(self, formula: AverageFormula) -> None:
        super().__init__(formula)
        self._how = formula
        self._memory = np.empty((2 + formula.has_base, 0))

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        how = self._how
        if self._memory.shape[1] < box.size:
            self._memory = np.empty((len(self._memory), box.size))
        total, term, *rest = (row[: box.size].reshape(box.shape) for row in self._memory)
        base = rest[0] if rest else None
        with np.errstate(all="ignore"):
            if base is not None:
                base[...] = operands[0]
            for number, weight in enumerate(how.weights):
                # The first is no term of a sum with 0, which would lose the sign of -0.0.
                into = term if number else total
                into[...] = operands[how.has_base + number]
                if base is not None:
                    into -= base
                if weight != 1:
                    into *= weight
                if number:
                    total += term
            if how.divisor != 1:
                total /= how.divisor
            if base is not None:
                total *= how.scale
                total += base
        round_into(out, total)


class SameFormula(Formula, frozen=True):
    """The first operand, which all others equal bit by bit.

    Attributes:
        uris: the checkpoints of the operands.
    """

    name: str
    uris: tuple[str, ...]

    is_opaque = True

    def boxes(self, box: Box) -> Sequence[Box]:
        return (box,) * len(self.uris)

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        del box
        out[...] = operands[0]
        wanted = out.tobytes()
        for uri, other in zip(self.uris[1:], operands[1:], strict=True):
            if other.tobytes() != wanted:
                raise VerificationError(unequal_text(f"tensor {self.name!r}", self.uris[0], uri))


def unequal_text(what: str, first: str, other: str) -> str:
    """The message for content that is no float and differs between two checkpoints."""
    return f"{what} is not averaged, and differs between {first} and {other}; say which checkpoint it is taken from, by its number from 1 (from_)"
