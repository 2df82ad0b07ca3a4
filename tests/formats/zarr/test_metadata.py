"""Fill values against numpy's own bytes, and against TensorStore's own JSON."""

from __future__ import annotations

import base64

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError
from reshard.formats.zarr.metadata import fill_bytes


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (None, "complex128", bytes(16)),
        (1.5, "float32", np.float32(1.5).tobytes()),
        (1.5, "bfloat16", np.array(1.5, ml_dtypes.bfloat16).tobytes()),
        ("NaN", "float64", np.float64("nan").tobytes()),
        ("-Infinity", "float16", np.float16("-inf").tobytes()),
        ("0x7fc00001", "float32", b"\x01\x00\xc0\x7f"),
        (True, "bool", b"\x01"),
        (0, "bool", b"\x00"),
        (-0.0, "float32", np.float32(-0.0).tobytes()),
        (0, "float8_e8m0fnu", np.array(0).astype(ml_dtypes.float8_e8m0fnu).tobytes()),
        (0, "bfloat16", b"\x00\x00"),
        (0.0, "uint4", b"\x00"),
        (0, "complex128", bytes(16)),
        (5.0, "int16", b"\x05\x00"),
        (-3, "int4", np.array(-3, ml_dtypes.int4).tobytes()),
        ((1 << 64) - 1, "uint64", b"\xff" * 8),
        ([1.5, "NaN"], "complex64", np.array(complex(1.5, np.nan), np.complex64).tobytes()),
        (base64.b64encode(b"\x01\x02").decode(), "int16", b"\x01\x02"),
    ],
)
def test_known_forms(value, dtype, expected):
    assert fill_bytes(value, dtype, "here") == expected


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, "int8"), (-1, "uint16"), (1.5, "int32"), ("x", "float32"), ("", "float32"), ([1, 2], "float32"),
        ([1], "complex64"), ({}, "int8"), (2, "bool"), ("0x123456789", "float32"), ("0xzz", "int8"),
        (10**400, "float32"), (10**400, "int64"), ("AAAA", "int64"), ([[1], 2], "complex64"), (20, "int4"),
    ],
)  # fmt: skip
def test_what_stands_for_no_element(value, dtype):
    with pytest.raises(
        CorruptError, match=f"here: fill_value should be an element of {dtype}, but is"
    ):
        fill_bytes(value, dtype, "here")


@given(st.floats(width=32))
def test_agrees_with_tensorstore(value):
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"shape": [1]}}
    store = ts.open(spec, create=True, dtype=ts.float32, fill_value=np.float32(value)).result()
    recorded = store.spec().to_json()["metadata"]["fill_value"]
    assert fill_bytes(recorded, "float32", "here") == store.fill_value.tobytes()
