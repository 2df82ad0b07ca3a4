"""The weights of merges: lists, Megatron's schedules, moving averages."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from reshard.arithmetic.average import merge_weights
from reshard.errors import PlanError


def test_equal_by_default_and_divided_by_their_sum() -> None:
    assert merge_weights(4).values == (1,) * 4
    assert merge_weights(4).divisor == 4
    assert (merge_weights(2, [1, 3]).values, merge_weights(2, [1, 3]).divisor) == ((1, 3), 4)
    assert merge_weights(2, [2, -1]).divisor == 1
    assert merge_weights(3, scale=1).divisor == 1
    assert merge_weights(2, [0.5, 0.1], scale=2).values == (1, 0.2)
    assert merge_weights(12).text == "each with the weight 0.0833333"
    assert merge_weights(12, range(12)).text == "with the weights 0, 0.0151515, 0.030303, …, 0.136364, 0.151515, 0.166667"  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_schedules_are_those_of_megatron(count: int) -> None:
    """``c[n-1] = s[n-1]``, ``c[i] = s[i] - s[i+1]``, ``c[0] = 1 - sum``; ``s[i] = schedule(i / n)``."""
    for name, schedule in (("linear", lambda x: 1 - x), ("minus-sqrt", lambda x: 1 - math.sqrt(x))):
        s = [schedule(i / count) for i in range(count)]
        expected = [0.0] * count
        expected[-1] = s[-1]
        for i in range(1, count - 1):
            expected[i] = s[i] - s[i + 1]
        expected[0] = 1 - sum(expected[1:])
        found = merge_weights(count, name)
        assert found.divisor == 1
        assert found.values == pytest.approx(expected, abs=1e-15)
    assert merge_weights(4, "linear").values == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_ema_is_the_average_that_moves_on(decay: float) -> None:
    for count in (1, 2, 9):
        d, average = Fraction(decay), [Fraction(1)] + [Fraction(0)] * (count - 1)
        for step in range(1, count):
            average = [d * a for a in average]
            average[step] += 1 - d
        found = merge_weights(count, ema=decay)
        assert found.values == pytest.approx([float(a) for a in average], rel=1e-12)


def test_numbers_of_numpy_are_those_of_python() -> None:
    assert merge_weights(9, ema=np.float32(0.9)) == merge_weights(9, ema=float(np.float32(0.9)))
    assert merge_weights(2, [np.float32(1), np.int64(3)]) == merge_weights(2, [1, 3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": [1, 2]}, "2 weights are given for 3 checkpoints; give a weight for each (weights)"),
        ({"weights": [1, -1, 0]}, "the weights 1.0, -1.0, 0.0 have the sum 0, by which an average would be divided; give weights with another sum (weights)"),
        ({"weights": [1, math.nan, 0]}, "weights is [1, nan, 0]; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ({"weights": [1, True, 0]}, "weights is [1, True, 0]; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ({"weights": "cosine"}, "weights is 'cosine'; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ({"weights": [1, 1, 1], "ema": 0.5}, "both weights and ema are given; ema is a list of weights: leave one out (weights or ema)"),
        ({"weights": 1}, "weights is 1; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ({"scale": math.inf}, "scale is inf; expected a finite number, such as 0.5"),
        ({"scale": 10**400}, f"scale is {10**400}; expected a finite number, such as 0.5"),
        ({"ema": 10**400}, f"ema is {10**400}; expected the decay of a moving average, between 0 and 1, such as 0.999"),
        ({"weights": [1, 1, 10**400]}, f"weights is [1, 1, {10**400}]; expected a finite number for each checkpoint, or one of 'linear', 'minus-sqrt'"),
        ({"weights": [1e308] * 3}, "the weights 1e+308, 1e+308, 1e+308 have the sum inf, by which an average would be divided; give weights with another sum (weights)"),
        ({"weights": [1, 10, 1], "scale": 1e308}, "a weight times the scale 1e+308 is no finite number; give smaller ones (weights, scale)"),
        ({"ema": 1}, "ema is 1; expected the decay of a moving average, between 0 and 1, such as 0.999"),
        ({"ema": "x"}, "ema is 'x'; expected the decay of a moving average, between 0 and 1, such as 0.999"),
    ],
)  # fmt: skip
def test_weights_that_make_no_average(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        merge_weights(3, **given)
    assert str(error.value) == message
