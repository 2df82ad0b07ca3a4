"""MergeWeights: the number by which each checkpoint counts in a merge, from a list, a schedule or a decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, get_args

from msgspec import Struct

from reshard.arguments import check_choice
from reshard.errors import PlanError

MergeMethod = Literal["linear", "task-arithmetic"]
"""A weighted average; or a base and what the checkpoints change of it."""

_OTHER_METHODS = {
    "ties": "it keeps the largest changes of each tensor, so that each is read twice",
    "dare": "it drops changes at random, by a seed that nothing records",
    "slerp": "it needs an angle for each tensor, so that each is read twice",
}

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "minus-sqrt": lambda x: 1 - math.sqrt(x),
}
"""Decays of the learning rate from 1 to 0, by the share of the steps that are done; their averages stand for such a decay (Megatron's
``weighted_merge``)."""


_SHOWN = 10


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
        if len(set(self.values)) == 1:
            return f"each with the weight {shown[0]}"
        few = shown if len(shown) <= _SHOWN else [*shown[:3], "…", *shown[-3:]]
        return f"with the weights {', '.join(few)}"


def check_method(method: str) -> MergeMethod:
    """The method of a merge; PlanError for another, with the reason if it is a known one."""
    name = method.lower() if isinstance(method, str) else ""
    known = next((why for other, why in _OTHER_METHODS.items() if name.startswith(other)), None)
    if known:
        raise PlanError(
            f"method is {method!r}, which is not done here: {known}; take linear or task-arithmetic (method), or merge with mergekit and convert "
            "the result"
        )
    check_choice("method", method, get_args(MergeMethod))
    return method  # type: ignore[return-value] # one of the choices


def merge_weights(
    count: int, weights: Any = None, ema: Any = None, *, is_sum: bool = False
) -> MergeWeights:
    """The weights of so many checkpoints, the oldest first; equal ones by default.

    Args:
        weights: a number for each, which are divided by their sum; or the name of one of ``SCHEDULES``, whose weights have the sum 1: with
            ``s[i] = schedule(i / count)`` the last has ``s[-1]``, each before it ``s[i] - s[i + 1]``, the first the rest.
        ema: a decay d between 0 and 1, as of an average that moves on with each checkpoint: ``(1 - d) * d ** (count - 1 - i)``, of the first
            ``d ** (count - 1)``.
        is_sum: true if weights are factors of a sum: they are taken as they are, by default 1.

    Raises PlanError for a wrong number of weights, for one that is no finite number, and for a sum of 0.
    """
    if ema is not None:
        if weights is not None:
            raise PlanError(
                "both weights and ema are given; ema is a list of weights: leave one out (weights or ema)"
            )
        return MergeWeights(_decayed(count, ema))
    if isinstance(weights, str):
        check_choice("weights", weights, tuple(SCHEDULES))
        s = [SCHEDULES[weights](i / count) for i in range(count)]
        middle = [s[i] - s[i + 1] for i in range(1, count - 1)]
        rest = [*middle, s[-1]] if count > 1 else []
        return MergeWeights((1 - math.fsum(rest), *rest))
    values = (1.0,) * count if weights is None else _numbers(count, weights)
    total = math.fsum(values)
    if is_sum:
        return MergeWeights(values)
    if total == 0 or not math.isfinite(total):
        raise PlanError(
            f"the weights {', '.join(map(str, values))} have the sum {total:g}, by which an average would be divided; give weights with another "
            "sum (weights)"
        )
    return MergeWeights(values, total)


def _decayed(count: int, ema: Any) -> tuple[float, ...]:
    if isinstance(ema, bool) or not isinstance(ema, int | float) or not 0 < ema < 1:
        raise PlanError(
            f"ema is {ema!r}; expected the decay of a moving average, between 0 and 1, such as 0.999"
        )
    rest = ((1 - ema) * ema ** (count - 1 - i) for i in range(1, count))
    return (ema ** (count - 1), *rest)


def _numbers(count: int, weights: Any) -> tuple[float, ...]:
    given = tuple(weights) if isinstance(weights, Sequence) else (weights,)
    wrong = [w for w in given if isinstance(w, bool) or not isinstance(w, Real)]
    if wrong or not all(map(math.isfinite, given)):
        raise PlanError(
            f"weights is {weights!r}; expected a finite number for each checkpoint, or one of {', '.join(map(repr, SCHEDULES))}"
        )
    if len(given) != count:
        raise PlanError(
            f"{len(given)} weights are given for {count} checkpoints; give a weight for each (weights)"
        )
    return tuple(map(float, given))
