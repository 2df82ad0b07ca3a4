"""Casts and the account of what they lost, against arithmetic with exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine import cast as cast_module
from reshard.engine.cast import cast_into
from reshard.geometry.dtypes import numpy_dtype
from tests.orbax_trees import random_array

FLOATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz",
    "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
INTS = ("int64", "uint64", "int32", "int16", "uint8", "int8", "int4", "bool")


def cast(values, dtype):
    out = np.empty(values.shape, numpy_dtype(dtype))
    return out, cast_into(out, values)


def account(values, out):
    """Overflows, NaNs and largest relative error, element by element in exact numbers."""
    overflows = nans = 0
    worst = Fraction(0)
    to_integer = out.dtype.name in INTS
    limits = integer_limits(out.dtype) if to_integer else None
    for before, after in zip(values.reshape(-1), out.reshape(-1), strict=True):
        a, b = plain(before), plain(after)
        nans += a != a
        if to_integer:
            if not math.isfinite(a) or not limits[0] <= math.trunc(a) <= limits[1]:
                overflows += 1
                continue
        elif not math.isfinite(a):
            continue
        elif not math.isfinite(b):
            overflows += 1
            continue
        if a:
            worst = max(worst, abs(Fraction(b) - Fraction(a)) / abs(Fraction(a)))
    return overflows, nans, float(worst)


def plain(element):
    return int(element) if element.dtype.name in INTS else float(element)


def integer_limits(dtype):
    if dtype.name == "bool":
        return 0, 1
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


@given(st.sampled_from((*FLOATS, *INTS)), st.sampled_from((*FLOATS, *INTS)), st.integers(0, 2**32))
def test_the_account_is_exact(source, target, seed):
    values = random_array(np.random.default_rng(seed), (3, 40), source)
    out, stats = cast(values, target)
    overflows, nans, worst = account(values, out)
    assert (stats.overflows, stats.nans) == (overflows, nans)
    assert stats.largest_relative_error == pytest.approx(worst, rel=1e-12)


def finite_values(dtype):
    bits = 4 if "4_" in dtype.name else 8 * dtype.itemsize
    with np.errstate(invalid="ignore"):
        every = np.arange(1 << bits).astype(f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


@given(st.sampled_from(FLOATS[2:]), st.integers(0, 2**32))
def test_elements_are_rounded_to_the_nearest(target, seed):
    """No other value of the type lies nearer; looked up among all of them."""
    every = finite_values(numpy_dtype(target))
    values = np.random.default_rng(seed).uniform(every.min(), every.max(), 200)
    values = np.concatenate([values, every[:50], (every[1:50] + every[:-1][:49]) / 2])
    out, stats = cast(values, target)
    distance = np.abs(out.astype(np.float64) - values)
    nearest = np.searchsorted(every, values)
    least = np.minimum(
        np.abs(every[np.clip(nearest, 0, len(every) - 1)] - values),
        np.abs(every[np.clip(nearest - 1, 0, len(every) - 1)] - values),
    )
    assert stats.overflows == 0
    # float64 goes to the narrow types by way of float32, which moves a value by half a step of that at most.
    moved = np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)
    assert np.all(distance <= least + moved)


@pytest.mark.parametrize(
    ("values", "dtype", "expected", "overflows", "nans"),
    [
        ([1e39, -1e39, 1.0], "bfloat16", [np.inf, -np.inf, 1.0], 2, 0),
        ([70000.0, np.inf, np.nan], "float16", [np.inf, np.inf, np.nan], 1, 1),
        ([500.0, 448.0], "float8_e4m3fn", [np.nan, 448.0], 1, 0),
        ([1e6, 57344.0], "float8_e5m2", [np.inf, 57344.0], 1, 0),
        ([300, -1, 255], "uint8", [44, 255, 255], 2, 0),
        ([255.5, -0.5, 1.5], "uint8", [255, 0, 1], 0, 0),
        ([2**53 + 1], "float64", [2**53], 0, 0),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_counted(values, dtype, expected, overflows, nans):
    array = np.array(values, np.float64 if isinstance(values[0], float) else np.int64)
    out, stats = cast(array, dtype)
    np.testing.assert_array_equal(out.astype(np.float64), expected)
    assert (stats.overflows, stats.nans) == (overflows, nans)


@pytest.mark.parametrize(
    ("value", "dtype", "overflows"),
    [(2.0**63, "int64", 1), (-(2.0**63), "int64", 0), (256.0, "uint8", 1), (-1.0, "uint8", 1)],
)
def test_the_ends_of_integers_are_exact(value, dtype, overflows):
    for source in (np.float64, np.float32):
        assert cast(np.array([value], source), dtype)[1].overflows == overflows


def test_complex_numbers_are_judged_as_one():
    values = np.array([1 + 1e-9j, 3e38 - 3e38j, 1e300 + 0j, complex(np.nan, 0)], np.complex128)
    out, stats = cast(values, "complex64")
    assert out.dtype == np.complex64
    assert (stats.overflows, stats.nans) == (1, 1)
    assert 0 < stats.largest_relative_error < 2**-23


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(1, 30), st.booleans())
def test_slabs_add_up_to_the_whole(shape, slab, turned):
    """Any shape in slabs of any size, views with strides too, gives what one slab gives."""
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32) * 1e5
    if turned:
        values = values.T
    whole, expected = cast(values, "float16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cast_module, "SLAB_ELEMENTS", slab)
        out, stats = cast(values, "float16")
    np.testing.assert_array_equal(out, whole)
    assert stats == expected


def test_nothing_is_lost_of_nothing():
    _, stats = cast(np.empty((0, 3), np.float32), "bfloat16")
    assert (stats.overflows, stats.nans, stats.largest_relative_error) == (0, 0, 0.0)


def every_value(dtype):
    """Every finite value of a narrow type, what lies around its ends, and what is no number."""
    kind = numpy_dtype(dtype)
    largest = float(ml_dtypes.finfo(kind).max)
    ends = [largest * factor for factor in (0.99, 1, 1.01, 1.03, 1.05, 1.07, 1.3, 2, 1e10)]
    ends = [end for end in ends if end < 3e38]
    special = [0.0, 1.0, np.inf, np.nan, 3.4e38]
    values = np.array([*ends, *special], np.float32)
    return np.concatenate([finite_values(kind).astype(np.float32), values, -values])


NARROW = (
    "float16", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
)  # fmt: skip


@pytest.mark.parametrize("source", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", NARROW)
def test_saturated_values_are_what_jax_makes_of_clipped_ones(source, dtype):
    with np.errstate(over="ignore"):
        values = every_value(dtype).astype(numpy_dtype(source))
    kind = numpy_dtype(dtype)
    info, wide = ml_dtypes.finfo(kind), values.astype(np.float64)
    clipped = np.clip(wide, float(info.min), float(info.max)).astype(np.float32)
    out = np.empty(values.shape, kind)
    stats = cast_into(out, values, saturate=True)
    bits = f"u{kind.itemsize}"
    np.testing.assert_array_equal(out.view(bits), clipped.astype(kind).view(bits))
    by_jax = np.asarray(jnp.asarray(clipped).astype(kind))
    assert (np.isnan(clipped) | (out.view(bits) == by_jax.view(bits))).all()
    assert (stats.overflows, stats.nans) == (0, np.count_nonzero(np.isnan(wide)))
    assert stats.saturated == np.count_nonzero(np.abs(wide) > float(info.max))
    plain, without = cast(values, dtype)
    inside = ~(np.abs(wide) > float(info.max))
    np.testing.assert_array_equal(out[inside].view(bits), plain[inside].view(bits))
    assert without.saturated == 0
    assert stats.largest_relative_error <= 1


def test_a_type_without_negative_values_saturates_upwards_only():
    values = np.array([3.4e38, np.inf, -1.0, 0.0, 4.0], np.float32)
    out = np.empty(5, ml_dtypes.float8_e8m0fnu)
    stats = cast_into(out, values, saturate=True)
    np.testing.assert_array_equal(out.astype(np.float64), [2.0**127, 2.0**127, np.nan, np.nan, 4.0])
    assert (stats.saturated, stats.overflows, stats.nans) == (2, 2, 0)


def test_integers_saturate_too():
    out = np.empty(4, ml_dtypes.float8_e4m3fn)
    stats = cast_into(out, np.array([1000, -1000, 448, 3], np.int64), saturate=True)
    np.testing.assert_array_equal(out.astype(np.float64), [448, -448, 448, 3])
    assert (stats.saturated, stats.overflows) == (2, 0)


def test_saturated_slabs_add_up():
    values = np.linspace(-1000, 1000, 5000, dtype=np.float32).reshape(50, 100)
    whole = np.empty(values.shape, ml_dtypes.float8_e4m3fn)
    expected = cast_into(whole, values, saturate=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cast_module, "SLAB_ELEMENTS", 77)
        out = np.empty(values.shape, ml_dtypes.float8_e4m3fn)
        assert cast_into(out, values, saturate=True) == expected
    np.testing.assert_array_equal(out.view("u1"), whole.view("u1"))
    assert expected.saturated == np.count_nonzero(np.abs(values) > 448)
