"""Lossless dtypes, decided against every value where there are few."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from reshard.geometry.dtypes import numpy_dtype
from reshard.layout.changes import kind_of
from reshard.restoring.match import is_lossless

NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu",
          "float8_e5m2fnuz", "float8_e3m4", "int8", "uint8", "int16", "uint16", "bool")  # fmt: skip


def every_value(dtype):
    if dtype == "bool":
        return np.array([False, True])
    bits = np.arange(1 << 8 * numpy_dtype(dtype).itemsize, dtype=np.uint32)
    return bits.astype(f"u{numpy_dtype(dtype).itemsize}").view(numpy_dtype(dtype))


@pytest.mark.parametrize("source", NARROW)
@pytest.mark.parametrize(
    "target", ["float32", "int32", "int16", "uint16", "int8", "bool", "float64"]
)
def test_what_is_called_lossless_keeps_every_value(source, target):
    if not is_lossless(source, target):
        return
    values = every_value(source)
    with np.errstate(invalid="ignore"):
        there = values.astype(numpy_dtype(target))
        back = there.astype(numpy_dtype(source))
    bits = f"u{values.itemsize}"
    nan = np.isnan(there) if there.dtype.kind == "f" else np.zeros(values.shape, bool)
    np.testing.assert_array_equal(back.view(bits)[~nan], values.view(bits)[~nan])


def test_kinds_never_change_and_floats_never_narrow():
    for source, target in itertools.product(("int8", "bool", "float32", "complex64"), repeat=2):
        assert is_lossless(source, target) == (source == target)
    assert is_lossless("int32", "int64")
    assert not is_lossless("uint32", "int32")
    assert not is_lossless("float32", "bfloat16")
    assert not is_lossless("float64", "float32")
    assert is_lossless("complex64", "complex128")
    assert not is_lossless("complex128", "complex64")
    assert all(kind_of(d) for d in NARROW)
