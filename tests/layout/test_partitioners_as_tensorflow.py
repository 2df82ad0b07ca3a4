"""Partitioners answer as TensorFlow's do, and where those crash or give no shard, clearly refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import (
    FixedShardsPartitioner,
    LayoutError,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("tensorflow")

OURS: dict[str, Any] = {
    "fixed": FixedShardsPartitioner, "min": MinSizePartitioner, "max": MaxSizePartitioner,
}  # fmt: skip
DTYPES = [
    "bool",
    "int8",
    "uint16",
    "bfloat16",
    "float16",
    "float32",
    "int64",
    "complex128",
    "string",
]
SIZES = st.integers(1, 40) | st.integers(1, 1 << 40)
COUNTS = st.integers(1, 12) | st.integers(1, 1000)
ARGUMENTS = st.one_of(
    st.tuples(st.just("fixed"), st.tuples(COUNTS)),
    st.tuples(st.just("min"), st.tuples(SIZES, COUNTS, st.integers(1, 64))),
    st.tuples(st.just("max"), st.tuples(SIZES, st.none() | st.just(0) | COUNTS, st.integers(1, 64))),
)  # fmt: skip


def theirs(tensorflow: Oracle, kind: str, arguments: Any, *call: Any) -> Any:
    shape, dtype, axis = call
    return tensorflow.ask(
        "partition", kind=kind, arguments=arguments, shape=shape, dtype=dtype, axis=axis
    )


@given(data=st.data())
def test_the_same_number_of_shards(tensorflow: Oracle, data: Any) -> None:
    kind, arguments = data.draw(ARGUMENTS)
    shape = data.draw(
        st.lists(st.integers(1, 30) | st.integers(1, 1 << 20), min_size=1, max_size=4)
    )
    dtype = data.draw(st.sampled_from(DTYPES))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    expected = theirs(tensorflow, kind, arguments, shape, dtype, axis)
    assert OURS[kind](*arguments)(shape, dtype, axis) == expected


@pytest.mark.parametrize(
    ("kind", "arguments", "shape", "axis", "upstream", "ours"),
    [
        # Equal, though they are edges.
        ("fixed", [3], [0, 4], 0, [0, 1], [0, 1]),
        ("min", [16, 10], [0, 20], 0, [1, 1], [1, 1]),
        ("min", [16, 10], [4, 0], 0, [1, 1], [1, 1]),
        ("max", [4, 0], [6, 1], 0, [6, 1], [6, 1]),
        ("max", [1e3], [90, 4], 0, [2, 1], [2, 1]),
        ("min", [1e2, 5], [90, 4], 0, [5, 1], [5, 1]),
        ("min", [0], [4], 0, "ValueError", "min_shard_bytes must be"),
        ("min", [1, 0], [4], 0, "ValueError", "max_shards must be"),
        ("min", [1, 1, 0], [4], 0, "ValueError", "bytes_per_string must be"),
        ("max", [0], [4], 0, "ValueError", "max_shard_bytes must be"),
        ("max", [1, -1], [4], 0, "ValueError", "max_shards must be"),
        ("min", [1], [], 0, "ValueError", "a scalar cannot be partitioned"),
        # TensorFlow crashes; the refusal is a ValueError here.
        ("max", [1], [], 0, "IndexError", "a scalar cannot be partitioned"),
        ("fixed", [1], [], 0, "IndexError", "a scalar cannot be partitioned"),
        ("fixed", [2], [4, 4], 2, "IndexError", "axis 2 is out of range"),
        ("min", [1, 9], [4, 4], 2, "ValueError", "axis 2 is out of range"),
        ("max", [2], [4, 4], -3, "IndexError", "axis -3 is out of range"),
        ("max", [2], [0, 4], 0, "ZeroDivisionError", "has no elements"),
        ("max", [2], [4, 0], 0, "ZeroDivisionError", "has no elements"),
        # TensorFlow answers with what makes no sense.
        ("fixed", [0], [4, 4], 0, [0, 1], "num_shards must be"),
        ("fixed", [-2], [4, 4], 0, [-2, 1], "num_shards must be"),
        ("fixed", [2.5], [4, 4], 0, [2, 1], "num_shards must be"),
        ("fixed", [True], [4, 4], 0, [1, 1], "num_shards must be"),
        ("max", [2.5], [4, 4], 0, [4, 1], "max_shard_bytes must be"),
        ("min", [8, 2.5], [4, 4], 0, [2, 1], "max_shards must be"),
    ],
)  # fmt: skip
def test_edges(
    tensorflow: Oracle, kind: str, arguments: Any, shape: list[int], axis: int, upstream: Any, ours: Any
) -> None:  # fmt: skip
    try:
        found = theirs(tensorflow, kind, arguments, shape, "float32", axis)
    except RefusedError as error:
        found = error.kind
    assert found == upstream
    if isinstance(ours, list):
        assert OURS[kind](*arguments)(shape, "float32", axis) == ours
        return
    with pytest.raises(LayoutError, match=ours):
        OURS[kind](*arguments)(shape, "float32", axis)
