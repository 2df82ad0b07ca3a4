"""Comparison of elements, against exact numbers of Python, for every two dtypes."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.geometry.dtypes import DTYPES, numpy_dtype
from reshard.verification import elements
from reshard.verification.elements import COMPARE_BYTES, Comparing, Differences
from tests.orbax_trees import random_array

ODD = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 3.4e38, 2.0**63)


def values(dtype: str, seed: int, size: int, odd: bool) -> np.ndarray:
    """A few different values, or odd ones: random bits, limits of integers, infinities and NaN."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    if not odd or dtype in ("uint2", "uint4", "float8_e4m3"):
        return rng.integers(0, 2, size).astype(np.float32).astype(kind)
    with np.errstate(all="ignore"):
        if kind.kind == "c":
            return np.array([complex(*rng.choice(ODD, 2)) for _ in range(size)], kind)
        if dtype in ("float64", "float32", "float16", "bfloat16"):
            return rng.choice(ODD, size).astype(kind)
    if kind.kind in "iu":
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        limits = [least, least + 1, 0, 1, most // 2 + 1, most - 1, most]
        return np.array([limits[n] for n in rng.integers(0, len(limits), size)], kind)
    return random_array(rng, (size,), dtype)


def exact(element: object) -> tuple[Fraction | float, Fraction | float]:
    """Real and imaginary part as an exact number, or as what is not finite."""

    def part(x: object) -> Fraction | float:
        if isinstance(x, int):
            return Fraction(x)
        number = float(x)
        return Fraction(number) if math.isfinite(number) else number

    number = element.item() if isinstance(element, np.generic) else element
    if isinstance(number, complex):
        return part(number.real), part(number.imag)
    if isinstance(number, bool | int):
        return part(int(number)), Fraction(0)
    if isinstance(element, ml_dtypes.int2 | ml_dtypes.int4 | ml_dtypes.uint2 | ml_dtypes.uint4):
        return part(int(element)), Fraction(0)
    return part(number), Fraction(0)


def is_nan(parts: tuple[Fraction | float, ...]) -> bool:
    return any(isinstance(p, float) and math.isnan(p) for p in parts)


def is_finite(parts: tuple[Fraction | float, ...]) -> bool:
    return all(isinstance(p, Fraction) for p in parts)


class Reference:
    """What comparing must give, by Fractions."""

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        same = a.dtype == b.dtype
        width = a.dtype.itemsize
        self.nans, self.infinities = [0, 0], [0, 0]
        self.differing, self.nonfinite = [], 0
        self.squares = self.squares_a = Fraction(0)
        sizes: list[tuple[Fraction, int]] = []
        for i in range(len(a)):
            x, y = exact(a[i]), exact(b[i])
            for side, parts in enumerate((x, y)):
                self.nans[side] += is_nan(parts)
                self.infinities[side] += not is_nan(parts) and not is_finite(parts)
            if same:
                differs = (
                    a.view("u1")[i * width :][:width].tobytes()
                    != b.view("u1")[i * width :][:width].tobytes()
                )
            else:
                differs = x != y and not (is_nan(x) and is_nan(y))
            finite = is_finite(x) and is_finite(y)
            if finite:
                self.squares_a += x[0] ** 2 + x[1] ** 2
            if differs:
                self.differing.append(i)
                self.nonfinite += not finite
                if finite:
                    square = (x[0] - y[0]) ** 2 + (x[1] - y[1]) ** 2
                    self.squares += square
                    sizes.append((square, i))
        self.largest_square = max((s for s, _ in sizes), default=None)
        self.first_largest = next((i for s, i in sizes if s == self.largest_square), None)


def close(found: float, expected_square: Fraction) -> bool:
    """Whether ``found`` is the root of an exact square, but for rounding to float64."""
    if math.isinf(found):
        return expected_square > Fraction(1.7976931348623157e308) ** 2
    return (
        abs(Fraction(found) ** 2 - expected_square)
        <= expected_square * Fraction(1, 2**40) + Fraction(5e-324) ** 2
    )


@given(
    st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 12),
    st.integers(0, 2**32), st.booleans(), st.integers(1, 5),
)  # fmt: skip
def test_any_two_dtypes_beside_exact_numbers(one, other, same, size, seed, odd, slab):
    other = one if same else other
    a, b = values(one, seed, size, odd), values(other, seed + 1, size, odd)
    expected = Reference(a, b)
    with mock.patch.object(elements, "SLAB_ELEMENTS", slab):
        found = Comparing.of(one, other).elements(a.view("u1"), b.view("u1"))
    assert found.elements == len(expected.differing)
    assert found.nonfinite == expected.nonfinite
    assert (list(found.nans), list(found.infinities)) == (expected.nans, expected.infinities)
    if expected.largest_square is None:
        assert found.largest is None
        assert found.at == (expected.differing[0] if expected.differing else None)
    else:
        assert close(found.largest, expected.largest_square)
        if isinstance(found.largest, int):
            assert found.largest**2 == expected.largest_square
            assert found.at == expected.first_largest
    unit = Fraction(1, 2**2400)
    for total, right in ((found.squares, expected.squares), (found.squares_a, expected.squares_a)):
        assert abs(total * unit - right) <= right * Fraction(1, 2**40)
    if not expected.squares:
        assert found.relative == 0.0
    elif not expected.squares_a:
        assert found.relative == math.inf
    else:
        assert close(found.relative, expected.squares / expected.squares_a)


@pytest.mark.parametrize(
    ("one", "other", "way"),
    [
        ("bfloat16", "float32", "float64"), ("float16", "bfloat16", "float64"), ("int8", "uint64", "integers"),
        ("bool", "int4", "integers"), ("int64", "float32", "float64"), ("complex64", "int8", "complex128"),
        ("float8_e4m3fn", "float8_e4m3fn", "float64"),
    ],
)  # fmt: skip
def test_in_what_they_are_compared(one, other, way):
    assert Comparing.of(one, other).compared_as == way


def compare(a: np.ndarray, b: np.ndarray) -> Differences:
    return Comparing.of(str(a.dtype), str(b.dtype)).elements(a.view("u1"), b.view("u1"))


def test_64_bit_integers_differ_by_one_where_float64_cannot_tell():
    large = np.array([2**53 + 1, -(2**62) - 1, 5], np.int64)
    found = compare(large, large.astype(np.float64))
    assert (found.elements, found.largest, found.at) == (2, 1.0, 0)
    assert compare(large, large + 1).largest == 1
    top = np.array([2**64 - 1], np.uint64)
    assert compare(top, np.array([-(2**63)], np.int64)).largest == 2**64 - 1 + 2**63


def test_keys_are_bits():
    a, b = np.array([1, 2, 3], np.uint32), np.array([1, 9, 9], np.uint32)
    found = Comparing.of("uint32", "uint32", is_key=True).elements(a.view("u1"), b.view("u1"))
    assert found == Differences(2, at=1)


def test_minus_zero_has_other_bits_but_the_same_value():
    zero = np.zeros(2, np.float32)
    found = compare(zero, -zero)
    assert (found.elements, found.largest, found.at, found.relative) == (2, 0.0, 0, 0.0)
    assert compare(zero, (-zero).astype(np.float64)).elements == 0


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.randoms())
def test_parts_add_up_in_any_order(cuts, random):
    rng = np.random.default_rng(sum(cuts))
    a = rng.normal(size=40).astype(np.float32)
    b = np.where(rng.random(40) < 0.3, rng.normal(size=40), a).astype(np.float32)
    edges = sorted({0, 40, *(4 * c for c in cuts)})
    parts = []
    for start, stop in pairwise(edges):
        found = compare(a[start:stop], b[start:stop])
        at = None if found.at is None else found.at + start
        parts.append(replace(found, at=at))
    in_order = sum(parts, Differences())
    random.shuffle(parts)
    assert sum(parts, Differences()) == in_order
    whole = compare(a, b)
    assert (in_order.elements, in_order.largest, in_order.at) == (
        whole.elements,
        whole.largest,
        whole.at,
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("complex128", "complex64"), ("complex128", "int64"), ("int64", "float64"), ("uint64", "int64"), ("float32", "float32")],
)  # fmt: skip
def test_temporaries_stay_within_their_price(one, other):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, 1 << 17).astype(np.int64).astype(d) for d in (one, other))
    comparing = Comparing.of(one, other)
    comparing.elements(a[:9].view("u1"), b[:9].view("u1"))
    tracemalloc.start()
    comparing.elements(a.view("u1"), b.view("u1"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < COMPARE_BYTES
