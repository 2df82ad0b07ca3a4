"""What a sharded variable can be made of, and its properties."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from reshard import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    SaveSliceInfo,
    ShardedVariable,
    VariableError,
    VariableIndexError,
    VariableTypeError,
)
from reshard.geometry.grid import Box


def rows(*sizes: int, columns: int = 2) -> list[np.ndarray[Any, Any]]:
    """Shards that count on from one another."""
    whole = np.arange(sum(sizes) * columns, dtype=np.float32).reshape(-1, columns)
    return list(np.split(whole, np.cumsum(sizes)[:-1]))


def test_shards_of_any_size_one_after_another() -> None:
    variable = ShardedVariable(rows(3, 0, 4, 1), name="table")
    assert (variable.shape, variable.ndim, variable.dtype) == ((8, 2), 2, np.float32)
    assert (variable.name, variable.axis, variable.partition_strategy) == ("table", 0, "div")
    assert variable.offsets == ((0, 0), (3, 0), (3, 0), (7, 0))
    assert variable.boxes[1] == Box((3, 0), (3, 2))
    assert variable.rows == (range(3), range(3, 3), range(3, 7), range(7, 8))
    assert [v.shape for v in variable] == [v.shape for v in variable.variables]
    assert all(isinstance(v, np.ndarray) for v in variable.variables)
    assert variable.save_slice_infos[2] == SaveSliceInfo("table", (8, 2), (3, 0), (4, 2))
    assert variable.save_slice_infos[2].spec == "8 2 3,4:0,2"
    assert repr(variable).endswith("shards=[[3, 2], [0, 2], [4, 2], [1, 2]])")


def test_the_whole_as_numpy_and_as_jax_array() -> None:
    whole = np.concatenate(rows(3, 0, 4))
    for devices in (None, jax.devices()[:3]):
        variable = ShardedVariable.split(whole, 3, devices=devices)
        np.testing.assert_array_equal(variable.numpy(), whole, strict=True)
        np.testing.assert_array_equal(np.asarray(variable), whole, strict=True)
        np.testing.assert_array_equal(jnp.asarray(variable), whole, strict=True)
        assert np.asarray(variable, np.float64).dtype == np.float64
        assert jnp.asarray(variable).devices() == {jax.devices()[0]}
    with pytest.raises(VariableError, match="is always a copy"):
        np.asarray(variable, copy=False)


@given(st.integers(0, 12), st.integers(1, 6), st.integers(0, 2), st.sampled_from(["div", "mod"]))
def test_what_is_split_is_whole_again(size: int, shards: int, axis: int, strategy: str) -> None:
    shape = [3, 2, 4]
    shape[axis] = size
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    variable = ShardedVariable.split(whole, shards, axis=axis, partition_strategy=strategy)
    for number, held in enumerate(variable.rows):
        part = whole.take(np.asarray(held, int), axis=axis)
        np.testing.assert_array_equal(variable.variables[number], part)
    np.testing.assert_array_equal(variable.numpy(), whole)
    np.testing.assert_array_equal(jnp.asarray(variable), whole)


def test_mod_deals_rows_in_turn() -> None:
    table = ShardedVariable.split(np.arange(13, dtype=np.int32), 5, "t", partition_strategy="mod")
    assert [v.tolist() for v in table.variables] == [
        [0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8], [4, 9],
    ]  # fmt: skip
    assert [v.shape for v in ShardedVariable.split(np.arange(13, dtype=np.int32), 5)] == [
        (3,), (3,), (3,), (2,), (2,),
    ]  # fmt: skip
    for members in (lambda: table.boxes, lambda: table.offsets, lambda: table.save_slice_infos):
        with pytest.raises(
            VariableError, match=r"'t' contain every 5th row \('mod'\), which no box"
        ):
            members()
    with pytest.raises(
        VariableError, match=r"a 'mod' table of 5 rows in 2 shards has \[3, 2\] rows"
    ):
        ShardedVariable([np.zeros(2, np.int8), np.zeros(3, np.int8)], partition_strategy="mod")


def test_splitting_by_partitioners_and_parts() -> None:
    whole = np.zeros((10, 6), np.float32)
    for partition, axis, sizes in [
        (FixedShardsPartitioner(3), 0, [4, 3, 3]),
        (FixedShardsPartitioner(30), 1, [1] * 6),
        (MaxSizePartitioner(48), 0, [2] * 5),
        (lambda *_: [1, 2], -1, [3, 3]),
        ([4, 1], 0, [3, 3, 2, 2]),
        (12, 0, [1] * 10 + [0, 0]),
        (np.int64(3), np.int64(-1), [2, 2, 2]),
        (np.array([1, 2]), 1, [3, 3]),
    ]:
        variable = ShardedVariable.split(whole, partition, axis=axis)
        assert [v.shape[axis] for v in variable] == sizes
    assert (
        len(ShardedVariable.split(np.zeros((0, 2), np.int8), FixedShardsPartitioner(3)).boxes) == 1
    )


@pytest.mark.parametrize("strategies", [("div", "mod"), ("mod", "div"), ("mod", "mod")])
def test_other_shard_counts(strategies: tuple[str, str]) -> None:
    """4 → 1 → 4 and 4 → 2, without the whole on one device."""
    whole = np.arange(22, dtype=np.float32).reshape(11, 2)
    four = ShardedVariable.split(
        whole, 4, "w", partition_strategy=strategies[0], devices=jax.devices()
    )
    for count in (1, 2, 4, 11):
        other = ShardedVariable.split(four, count, partition_strategy=strategies[1])
        back = ShardedVariable.split(other, 4, partition_strategy=strategies[0])
        np.testing.assert_array_equal(other.numpy(), whole)
        assert all(map(np.array_equal, four.variables, back.variables))


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.int2, np.int8, bool],
)
def test_any_dtype_that_jax_has(dtype: Any) -> None:
    whole = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    variable = ShardedVariable.split(whole, 2)
    assert variable.dtype == dtype
    np.testing.assert_array_equal(variable.numpy(), whole, strict=True)
    np.testing.assert_array_equal(jnp.asarray(variable), whole, strict=True)


def test_numpy_arrays_are_copied() -> None:
    shard = np.zeros((64, 64), np.float32)
    variable = ShardedVariable([shard])
    shard[:] = 1
    assert not variable.numpy().any()


def test_copies_and_pickles() -> None:
    variable = ShardedVariable(rows(2, 1), name="w")
    other = copy.deepcopy(variable).assign(np.zeros((3, 2), np.float32))
    assert variable.numpy().any()
    assert not other.numpy().any()
    code = (
        "import pickle, sys\n"
        "found = pickle.load(sys.stdin.buffer)\n"
        "import jax\n"
        "print(found.name, found.shape, len(jax.tree.leaves(found)))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(variable), capture_output=True, check=False)  # fmt: skip
    assert done.stdout.decode().strip() == "w (3, 2) 2", done.stderr.decode()


F4 = np.zeros((2, 3), np.float32)
OVER_TWO = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ShardedVariable([]), VariableTypeError, "must be a non-empty list or tuple of arrays, not an empty one"),
        (lambda: ShardedVariable(F4), VariableTypeError, "non-empty list or tuple of arrays, not a ndarray"),
        (lambda: ShardedVariable({1: F4}), VariableTypeError, "not a dict"),
        (lambda: ShardedVariable("ab"), VariableTypeError, "not a str"),
        (lambda: ShardedVariable([F4, 1.0]), VariableTypeError, "must be a jax or numpy array, not a float"),
        (lambda: ShardedVariable([F4, [1.0]], "w"), VariableError, "'w' must have one number of dimensions, but have 2, 1"),
        (lambda: ShardedVariable([[1.0], [2]], "w"), VariableError, "'w' must have one dtype, but have float32, int32"),
        (lambda: ShardedVariable([[[1], [1, 2]]], "w"), VariableError, "'w' was given a list that is not an array"),
        (lambda: ShardedVariable([[1e300]], "w"), VariableError, r"'w' was given a list of numbers beyond float32, .* give numpy.array"),
        (lambda: ShardedVariable([ShardedVariable([F4])]), VariableTypeError, "numpy array, not a ShardedVariable"),
        (lambda: ShardedVariable([F4], name=3), VariableTypeError, "name of a variable must be text, not 3"),
        (lambda: ShardedVariable([F4, F4.astype(np.int32)], "w"), VariableError, "shards of 'w' must have one dtype, but have float32, int32"),
        (lambda: ShardedVariable([F4, F4[0]], "w"), VariableError, "'w' must have one number of dimensions, but have 2, 1"),
        (lambda: ShardedVariable([F4, F4[:, :2]], "w"), VariableError, r"same shape except along axis 0, but have \[2, 3\], \[2, 2\]"),
        (lambda: ShardedVariable([F4, F4[:1]], "w", axis=1), VariableError, "same shape except along axis 1"),
        (lambda: ShardedVariable([np.float32(1) * np.ones(())], "w"), VariableTypeError, "not a float"),
        (lambda: ShardedVariable([jnp.ones(())], "w"), VariableError, "'w' is a scalar"),
        (lambda: ShardedVariable([F4], "w", axis=2), VariableIndexError, r"axis 2 is out of range for 'w' of shape \[2, 3\]; expected -2 to 1"),
        (lambda: ShardedVariable([F4], "w", axis=0.0), VariableTypeError, "axis of 'w' must be a whole number"),
        (lambda: ShardedVariable([F4], "w", partition_strategy="dvi"), VariableError, "'div' or 'mod', not 'dvi'"),
        (lambda: ShardedVariable([np.array(["a"])], "w"), VariableTypeError, "has dtype <U1, which is not a dtype of numbers"),
        (lambda: ShardedVariable([jax.random.key(0)[None]], "w"), VariableTypeError, "shard jax.random.key_data"),
        (lambda: ShardedVariable.split(F4, 0, "w"), VariableError, "'w' cannot be split into 0 shards"),
        (lambda: ShardedVariable.split(F4, 1 << 60, "w"), VariableError, "cannot be split into 1152921504606846976 shards"),
        (lambda: ShardedVariable.split(F4, "2", "w"), VariableTypeError, "the partition of 'w' must be a number of shards"),
        (lambda: ShardedVariable.split(F4, 2.0, "w"), VariableTypeError, "the partition of 'w' must be a number of shards"),
        (lambda: ShardedVariable.split(F4, [2], "w"), VariableError, "one number of parts for each dimension"),
        (lambda: ShardedVariable.split(F4, [1, 3], "w"), VariableError, "splits dimension 1, but its shards are along axis 0"),
        (lambda: ShardedVariable.split(F4, 2, "w", devices=[]), VariableError, "no devices were given for the shards of 'w'"),
        (lambda: ShardedVariable([np.ma.array(F4, mask=True)], "w"), VariableTypeError, "not a MaskedArray"),
        (lambda: ShardedVariable.split([[1], [1, 2]], 2, "w"), VariableError, "'w' was given a list that is not an array"),
        (lambda: ShardedVariable.split(np.ma.array(F4), 2, "w"), VariableTypeError, "'w' was given a masked array"),
        (lambda: ShardedVariable.split(F4, True, "w"), VariableTypeError, "the partition of 'w' must be a number of shards"),
        (lambda: ShardedVariable.split(F4, lambda *_: [-1, 1], "w"), VariableError, "'w' cannot be split into -1 shards"),
        (lambda: ShardedVariable.split(F4, 2, "w", devices=jax.devices()[0]), VariableTypeError, "devices for the shards of 'w' must be a list"),
        (lambda: ShardedVariable.split(F4, 2, "w", devices=["cpu:0"]), VariableError, "a shard of 'w' cannot be put on its device"),
        (lambda: ShardedVariable.split(F4, 2, "w", devices=[OVER_TWO]), VariableError, "a shard of 'w' cannot be put on its device"),
        (lambda: ShardedVariable.split(np.float32(3), 1, "w"), VariableError, "'w' is a scalar"),
    ],
)  # fmt: skip
def test_refusals(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
