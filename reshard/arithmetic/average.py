"""The arithmetic of a merge: the weight of each checkpoint, the weighted average of a tensor, and the tensor that all checkpoints have.

A sum is of float64, with weights of float64, and is rounded once to the dtype of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from msgspec import Struct

from reshard.errors import PlanError, VerificationError
from reshard.formats.computed.formula import Calculation, Formula
from reshard.geometry.grid import Box

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "minus-sqrt": lambda x: 1 - math.sqrt(x),
}
"""Decays of the learning rate from 1 to 0, by the share of the steps that are done; their averages stand for such a decay (Megatron's
``weighted_merge``)."""


class MergeWeights(Struct, frozen=True):
    """The weights of checkpoints, in their order; a sum with them is divided by ``divisor``."""

    values: tuple[float, ...]
    divisor: float = 1.0

    @property
    def text(self) -> str:
        """The weights after the division, for people; of many only the first and the last.

        >>> MergeWeights((1.0, 3.0), 4.0).text
        'with the weights 0.25, 0.75'
        """
        shown = [f"{value / self.divisor:.6g}" for value in self.values]
        if len(set(shown)) == 1:
            return f"each with the weight {shown[0]}"
        shown[3:-3] = ["…"] if len(shown) > 10 else shown[3:-3]
        return f"with the weights {', '.join(shown)}"


def merge_weights(
    count: int, weights: Any = None, ema: Any = None, scale: Any = None
) -> MergeWeights:
    """The weights of so many checkpoints, the oldest first; equal ones by default.

    Args:
        weights: a number for each, which are divided by their sum; or the name of one of ``SCHEDULES``, whose weights have the sum 1: with
            ``s[i] = schedule(i / count)`` the last has ``s[-1]``, each before it ``s[i] - s[i + 1]``, the first the rest.
        ema: a decay d between 0 and 1, as of an average that moves on with each checkpoint: ``(1 - d) * d ** (count - 1 - i)``, of the first
            ``d ** (count - 1)``.
        scale: of a sum of changes: weights are multiplied by it and not divided, and are 1 by default. None for an average.

    Raises PlanError for a wrong number of weights, for one that is no finite number, and for a sum of 0.
    """
    if scale is not None and not _is_number(scale):
        raise PlanError(f"scale is {scale!r}; expected a finite number, such as 0.5")
    values = _given(count, weights) if ema is None else _decayed(count, weights, ema)
    if scale is not None:
        values = tuple(float(scale) * value for value in values)
        if not all(map(math.isfinite, values)):
            raise PlanError(
                f"a weight times the scale {scale!r} is no finite number; give smaller ones (weights, scale)"
            )
        return MergeWeights(values)
    try:
        total = math.fsum(values) if ema is None and not isinstance(weights, str) else 1.0
    except OverflowError:
        total = math.inf
    if total == 0 or not math.isfinite(total):
        raise PlanError(
            f"the weights {', '.join(map(str, values))} have the sum {total:g}, by which an average would be divided; give weights with another "
            "sum (weights)"
        )
    return MergeWeights(values, total)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _decayed(count: int, weights: Any, ema: Any) -> tuple[float, ...]:
    if weights is not None:
        raise PlanError(
            "both weights and ema are given; ema is a list of weights: leave one out (weights or ema)"
        )
    if not _is_number(ema) or not 0 < ema < 1:
        raise PlanError(
            f"ema is {ema!r}; expected the decay of a moving average, between 0 and 1, such as 0.999"
        )
    ema = float(ema)  # a float32 of numpy would give weights in float32
    rest = ((1 - ema) * ema ** (count - 1 - i) for i in range(1, count))
    return (ema ** (count - 1), *rest)


def _given(count: int, weights: Any) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * count
    if isinstance(weights, str) and weights in SCHEDULES:
        s = [*(SCHEDULES[weights](i / count) for i in range(count)), 0.0]
        rest = [s[i] - s[i + 1] for i in range(1, count)]
        return (1 - math.fsum(rest), *rest)
    is_list = isinstance(weights, Sequence) and not isinstance(weights, str)
    if not is_list or not all(map(_is_number, weights)):
        raise PlanError(
            f"weights is {weights!r}; expected a finite number for each checkpoint, or one of {', '.join(map(repr, SCHEDULES))}"
        )
    if len(weights) != count:
        raise PlanError(
            f"{len(weights)} weights are given for {count} checkpoints; give a weight for each (weights)"
        )
    return tuple(map(float, weights))


class AverageFormula(Formula, frozen=True):
    """``sum(weight * x) / divisor``; with a base, the first operand, ``base + sum(weight * (x - base)) / divisor``."""

    weights: MergeWeights
    has_base: bool = False

    window_elements = 1 << 18
    scratch_bytes = 24

    def boxes(self, box: Box) -> Sequence[Box]:
        return (box,) * (len(self.weights.values) + self.has_base)

    def opened(self, where: str, nbytes: int) -> Calculation:
        del where, nbytes
        return _Sums(self)


class _Sums(Calculation):
    """The sums of a window, in memory that every window of a chunk uses again: to fill new pages took twice as long (measured)."""

    def __init__(self, formula: AverageFormula) -> None:
        import numpy as np

        super().__init__(formula)
        self._how = formula
        self._memory = np.empty((2 + formula.has_base, 0))

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        import numpy as np

        from reshard.arithmetic.rounding import round_into

        if self._memory.shape[1] < box.size:
            self._memory = np.empty((len(self._memory), box.size))
        total, term, *base = (row[: box.size].reshape(box.shape) for row in self._memory)
        weights = self._how.weights
        with np.errstate(all="ignore"):
            for each in base:
                each[...] = operands[0]
            for number, weight in enumerate(weights.values):
                # The first is no term of a sum with 0, which would lose the sign of -0.0.
                into = term if number else total
                into[...] = operands[len(base) + number]
                for each in base:
                    into -= each
                if weight != 1:
                    into *= weight
                if number:
                    total += term
            if weights.divisor != 1:
                total /= weights.divisor
            for each in base:
                total += each
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
