"""The table was measured with tensorflow 2.21.0."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import FormatError, LayoutError
from reshard.layout.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    div_cuts,
)

Fixed, Min, Max = FixedShardsPartitioner, MinSizePartitioner, MaxSizePartitioner


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "axis", "expected"),
    [
        (Fixed(5), [3, 4], "float32", 0, [3, 1]),
        (Fixed(3), [4, 10], "float32", 1, [1, 3]),
        (Fixed(3), [4, 10], "float32", -1, [1, 3]),
        (Fixed(3), [0, 4], "float32", 0, [0, 1]),
        (Min(5, 10), [6, 1], "float32", 0, [5, 1]),
        (Min(max_shards=17), [1024, 1025], "float32", 0, [17, 1]),
        (Min(), [1 << 20, 4], "float32", 0, [1, 1]),
        (Min(8, 64), [9, 3], "bfloat16", 0, [7, 1]),
        (Min(40, 100), [10, 2], "string", 0, [8, 1]),
        (Min(16, 10), [2, 20], "float32", 1, [1, 10]),
        (Min(16, 10), [0, 20], "float32", 0, [1, 1]),
        (Max(9), [7, 1], "float32", 0, [4, 1]),
        (Max(4, 2), [6, 1], "float32", 0, [2, 1]),
        (Max(4, 0), [6, 1], "float32", 0, [6, 1]),
        (Max(100), [7, 10], "float32", 1, [1, 4]),
        (Max(64), [6, 2], "string", 0, [3, 1]),
        (Max((64 << 20) - 1), [10**8, 16], "float32", 0, [96, 1]),
        (Max(1), [4, 1000], "float32", 0, [4, 1]),
    ],
)
def test_table(
    partitioner: Any, shape: list[int], dtype: str, axis: int, expected: list[int]
) -> None:
    assert partitioner(shape, dtype, axis) == expected


@pytest.mark.parametrize(
    "dtype", [np.float32, np.dtype("float32"), "f4", "float32", np.dtype("<f4")]
)
def test_dtypes_in_any_of_numpys_ways(dtype: Any) -> None:
    assert Max(4)((6, 1), dtype) == [6, 1]


def test_whole_numbers_of_any_type() -> None:
    assert Fixed(np.int64(3)) == Fixed(3)
    assert Max(1e2)((7, 10), "float32", 1) == Max(100)((7, 10), "float32", 1)
    assert Fixed(3)(np.array([4, 4]), "float32", np.int64(-1)) == [1, 3]


def test_other_dtypes() -> None:
    assert Max(4)((6, 1), ml_dtypes.bfloat16) == [3, 1]
    assert Max(4)((6, 1), np.dtype(ml_dtypes.float8_e4m3fn)) == [2, 1]
    assert Max(32)((6,), str) == [3]
    assert Max(8, bytes_per_string=4)((6,), object) == [3]
    with pytest.raises(FormatError, match="dtype 'float33' is not known"):
        Max(4)((6, 1), "float33")


@given(
    st.tuples(st.integers(1, 500), st.integers(1, 40)),
    st.integers(1, 5000),
    st.none() | st.integers(1, 60),
)
def test_shards_keep_the_size_they_promise(
    shape: tuple[int, int], size: int, most: int | None
) -> None:
    rows, columns = shape
    shards = Max(size, most)(shape, "float32")[0]
    largest = -(-rows // shards) * columns * 4
    assert 1 <= shards <= rows
    assert largest <= max(size, columns * 4) or shards == most
    shards = Min(size, most or 60)(shape, "float32")[0]
    assert shards == 1 or (shards - 1) * size < rows * columns * 4


@given(st.integers(0, 200), st.integers(1, 50))
def test_div_gives_the_first_shards_one_row_more(size: int, shards: int) -> None:
    shards = min(shards, size) or 1
    expected = [len(part) for part in np.array_split(np.arange(size), shards)] if size else []
    assert np.diff(div_cuts(size, shards)).tolist() == expected


@pytest.mark.parametrize(("size", "shards"), [(4, 5), (4, 0), (4, -1), (1 << 62, 1 << 61)])
def test_div_refuses_empty_shards_and_absurd_numbers(size: int, shards: int) -> None:
    with pytest.raises(LayoutError, match=f"{size} rows cannot be split into {shards} shards"):
        div_cuts(size, shards)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(0), "num_shards must be a whole number of at least 1, not 0"),
        (lambda: Fixed(2.5), "num_shards must be a whole number of at least 1, not 2.5"),
        (lambda: Max(8, True), "max_shards must be a whole number of at least 0, not True"),
        (lambda: Min(float("inf")), "min_shard_bytes must be a whole number of at least 1, not inf"),
        (lambda: Fixed(2)((None, 4), "float32"), r"a shape is a sequence of whole numbers of at least 0, not \(None, 4\)"),
        (lambda: Max(2)((-3, 4), "float32"), "a shape is a sequence of whole numbers of at least 0"),
        (lambda: Fixed(2)(4, "float32"), "a shape is a sequence of whole numbers of at least 0, not 4"),
        (lambda: Fixed(2)((4,), "float32", None), "an axis is a whole number, not None"),
        (lambda: Max(2)((4,), None), "a dtype is needed to count bytes"),
        (lambda: Min(0), "min_shard_bytes must be a whole number of at least 1, not 0"),
        (lambda: Min(1, 0), "max_shards must be a whole number of at least 1, not 0"),
        (lambda: Min(1, 1, 0), "bytes_per_string must be a whole number of at least 1, not 0"),
        (lambda: Max(0), "max_shard_bytes must be a whole number of at least 1, not 0"),
        (lambda: Max(1, -1), "max_shards must be a whole number of at least 0, not -1"),
        (lambda: Max(1, None, 0), "bytes_per_string must be"),
        (lambda: Fixed(2)((), "float32"), "a scalar cannot be partitioned"),
        (lambda: Fixed(2)((4, 4), "float32", 2), r"axis 2 is out of range for shape \[4, 4\]; expected -2 to 1"),
        (lambda: Max(2)((4, 4), "float32", -3), "axis -3 is out of range"),
        (lambda: Max(2)((0, 4), "float32"), r"shape \[0, 4\] has no elements"),
        (lambda: Max(2)((4, 0), "float32"), r"shape \[4, 0\] has no elements"),
    ],
)  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()
