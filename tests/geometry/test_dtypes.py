from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from reshard.errors import FormatError
from reshard.geometry.dtypes import DTYPES, VALUE_BITS, numpy_dtype, storage_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_names_and_sizes_are_those_of_numpy_and_ml_dtypes(dtype: str) -> None:
    found = numpy_dtype(dtype)
    assert found.name == dtype
    assert storage_bytes(dtype) == found.itemsize == np.zeros(3, found).nbytes // 3


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool" and "complex" not in d])
def test_types_with_bits_to_spare_are_those_of_ml_dtypes(dtype: str) -> None:
    info = ml_dtypes.iinfo if "int" in dtype else ml_dtypes.finfo
    assert VALUE_BITS.get(dtype, 8 * storage_bytes(dtype)) == info(numpy_dtype(dtype)).bits


@pytest.mark.parametrize("dtype", ["float33", "", "object", "f4"])
def test_unknown_names(dtype: str) -> None:
    for read in (storage_bytes, numpy_dtype):
        with pytest.raises(
            FormatError, match=f"dtype '{dtype}' is not known; expected one of: bool, int2"
        ):
            read(dtype)
