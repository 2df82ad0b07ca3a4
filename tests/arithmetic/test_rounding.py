"""float64 values are rounded once, to nearest even, whatever lies on the way."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reshard.arithmetic.rounding import SLAB_ELEMENTS, round_into
from reshard.geometry.dtypes import numpy_dtype

NARROW = (
    "bfloat16", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
)  # fmt: skip


def numbers_of(dtype: str) -> np.ndarray:
    """Every finite number of a type, ascending; 0 once."""
    kind = numpy_dtype(dtype)
    count = 1 << (4 if "float4" in dtype else 8 * kind.itemsize)
    with np.errstate(all="ignore"):
        found = np.arange(count, dtype=f"u{kind.itemsize}").view(kind).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    out = np.empty(values.shape, numpy_dtype(dtype))
    round_into(out, values)
    with np.errstate(all="ignore"):
        return out.astype(np.float64)


@pytest.mark.parametrize("dtype", NARROW)
def test_beside_every_midpoint(dtype: str) -> None:
    """A float64 beside the middle of two neighbours goes to the nearer; its float32 is the middle itself, from where half of them would not."""
    numbers = numbers_of(dtype)
    low, high = numbers[:-1], numbers[1:]
    middle = (low + high) / 2  # exact
    assert np.array_equal(rounded(np.nextafter(middle, -np.inf), dtype), low)
    assert np.array_equal(rounded(np.nextafter(middle, np.inf), dtype), high)
    assert np.array_equal(rounded(numbers, dtype), numbers)
    even = rounded(middle, dtype)
    assert np.all((even == low) | (even == high))
    assert np.array_equal(even, middle.astype(numpy_dtype(dtype)).astype(np.float64))


def test_against_fractions() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=400) * 10.0 ** rng.integers(-44, 38, 400)
    numbers = numbers_of("bfloat16")
    for value, found in zip(values, rounded(values, "bfloat16"), strict=True):
        at = np.clip(np.searchsorted(numbers, value), 1, len(numbers) - 1)
        near = numbers[max(0, at - 2) : at + 2]
        distance = [abs(Fraction(n) - Fraction(value)) for n in near]
        assert abs(Fraction(found) - Fraction(value)) == min(distance)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_what_is_no_number_or_too_large(dtype: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e300, -1e300, 1e-320, -1e-320])
    found = rounded(values, dtype)
    with np.errstate(all="ignore"):
        expected = values.astype(numpy_dtype(dtype)).astype(np.float64)
    assert found.tobytes() == expected.tobytes()


def test_more_than_a_slab_of_any_shape() -> None:
    values = np.random.default_rng(0).normal(size=(3, SLAB_ELEMENTS))
    middle = np.nextafter(np.float64(1) + 2**-8, 2)
    values[2, -1] = middle
    out = np.empty(values.shape, ml_dtypes.bfloat16)
    round_into(out, values)
    assert out[2, -1] == ml_dtypes.bfloat16(1 + 2**-7)
    assert np.count_nonzero(out != values.astype(np.float32).astype(ml_dtypes.bfloat16)) == 1
