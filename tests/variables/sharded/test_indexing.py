"""Indexing is held against NumPy's, for every kind of index that Hypothesis can think of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reshard import ShardedVariable, VariableError, VariableIndexError, VariableTypeError


@st.composite
def variables(draw: Any) -> tuple[ShardedVariable, np.ndarray[Any, Any]]:
    """A variable in shards along any axis, and the array it holds."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7))
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    axis = draw(st.integers(0, len(shape) - 1))
    devices = jax.devices()[: draw(st.integers(1, 3))]
    if draw(st.booleans()):
        strategy, shards = draw(st.sampled_from(["div", "mod"])), draw(st.integers(1, 5))
        made = ShardedVariable.split(
            whole, shards, axis=axis, partition_strategy=strategy, devices=devices
        )
        return made, whole
    cuts = sorted(draw(st.lists(st.integers(0, shape[axis]), max_size=4)))
    return ShardedVariable(np.split(whole, cuts, axis), axis=axis), whole


@st.composite
def indexed(draw: Any) -> tuple[ShardedVariable, np.ndarray[Any, Any], Any]:
    """A variable, the array it holds, and an index of any kind."""
    variable, whole = draw(variables())
    kinds = [
        hnp.basic_indices(whole.shape, allow_newaxis=True, max_dims=6),
        hnp.arrays(bool, whole.shape),
        hnp.arrays(bool, whole.shape[:1]),
        st.slices(max(1, whole.shape[0])),
        st.builds(slice, *[st.none() | st.integers(-12, 12)] * 2, st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])),
        st.booleans(),
    ]  # fmt: skip
    if whole.size:
        kinds.append(hnp.integer_array_indices(whole.shape))
        kinds.append(st.lists(st.integers(-whole.shape[0], whole.shape[0] - 1), max_size=5))
    return variable, whole, draw(st.one_of(kinds))


@given(indexed())
def test_any_index(case: tuple[ShardedVariable, np.ndarray[Any, Any], Any]) -> None:
    variable, whole, index = case
    found = variable[index]
    assert isinstance(found, type(variable.variables[0]))
    np.testing.assert_array_equal(np.asarray(found), whole[index], strict=True)


MIXED = [
    np.s_[0, :, [1, 2]], np.s_[[0, 4], 1:2, [1, 2]], np.s_[..., [0, 1]], np.s_[:, None, [2, 0]],
    np.s_[[[0], [3]], [0, 1]], np.s_[[4, 4, -1]], np.s_[[]], np.s_[:, [True, False, True]],
    np.s_[[True, False, True, True, False], 1], np.s_[True], np.s_[False], np.s_[True, 1:2],
    np.s_[None, 1], np.s_[..., 1:2, 0], np.s_[9::2], np.s_[-9:9:3], np.s_[9:0:-2], np.s_[3:-9:-2],
    np.s_[np.array([1, 4], np.uint64)], np.s_[[[]]], np.s_[-(2**70) : 2**70 : 2**65], np.s_[9 : 2 : -(2**65)],
    np.s_[np.int64(3)], np.s_[np.array(3)], np.s_[()], np.s_[...], np.s_[2, None, ..., None, 1],
]  # fmt: skip


@pytest.mark.parametrize("index", MIXED, ids=repr)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_indices_of_mixed_kinds(index: Any, axis: int, strategy: str) -> None:
    whole = np.arange(60, dtype=np.int32).reshape(5, 3, 4)
    variable = ShardedVariable.split(whole, 2, axis=axis, partition_strategy=strategy)
    np.testing.assert_array_equal(np.asarray(variable[index]), whole[index], strict=True)


@pytest.mark.parametrize(
    "index",
    [jnp.array([2, 0]), jnp.array([2, 0], jnp.uint4), jnp.array(1), jnp.array([True, False, True])],
)
def test_jax_arrays_as_indices(index: Any) -> None:
    whole = np.arange(6).astype(np.int32).reshape(3, 2)
    variable = ShardedVariable([whole[:1], whole[1:]])
    np.testing.assert_array_equal(
        np.asarray(variable[index]), whole[np.asarray(index, None if index.dtype == bool else int)]
    )


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (5, VariableIndexError, "'t' of shape .5, 3. cannot be indexed like this: index 5 is out of bounds"),
        (-6, VariableIndexError, "index -6 is out of bounds for axis 0 with size 5"),
        ((0, 3), VariableIndexError, "index 3 is out of bounds for axis 1"),
        ((0, 0, 0), VariableIndexError, "too many indices"),
        ((..., ...), VariableIndexError, "can only have a single ellipsis"),
        (1.5, VariableIndexError, "'t' of shape .5, 3. cannot be indexed"),
        ("name", VariableIndexError, "'t' of shape .5, 3. cannot be indexed"),
        ([1, 5], VariableIndexError, "index 5 is out of bounds"),
        ([True, False], VariableIndexError, "boolean index did not match"),
        (([0, 1], [0, 1, 2]), VariableIndexError, "could not be broadcast together"),
        (np.s_[::0], VariableError, "slice step cannot be zero"),
        ([1, [2, 3]], VariableError, "indexing of 't' was given no array"),
        (np.s_["a":], VariableTypeError, "slice indices must be integers"),
    ],
)  # fmt: skip
def test_refusals(index: Any, error: type[Exception], message: str) -> None:
    variable = ShardedVariable.split(np.zeros((5, 3), np.float32), 2, "t")
    with pytest.raises(error, match=message):
        variable[index]


def test_only_the_shards_that_hold_it_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from reshard.variables.sharded import reading

    moved: list[tuple[int, ...]] = []
    real = reading.on_one_device
    monkeypatch.setattr(
        reading, "on_one_device", lambda a: (moved.extend(x.shape for x in a), real(a))[1]
    )
    whole = np.zeros((100, 64), np.float32)
    variable = ShardedVariable.split(whole, 10, devices=jax.devices())
    variable[18:23, 5:7], variable[57], variable[[3, 99, 3]], variable[:, 1]
    assert moved == [(2, 2), (3, 2), (1, 64), (1, 64), (1, 64), *[(10, 1)] * 10]


def test_a_row_stays_on_its_device() -> None:
    variable = ShardedVariable.split(np.zeros((8, 2), np.float32), 4, devices=jax.devices()[:4])
    assert [variable[2 * i].devices() for i in range(4)] == [{d} for d in jax.devices()[:4]]


def test_traced_indices() -> None:
    whole = np.arange(10, dtype=np.float32).reshape(5, 2)
    for strategy in ("div", "mod"):
        variable = ShardedVariable.split(whole, 3, partition_strategy=strategy)
        found = jax.jit(lambda v, i: v[i])(variable, jnp.array([4, 1]))
        np.testing.assert_array_equal(np.asarray(found), whole[[4, 1]])
        np.testing.assert_array_equal(jax.jit(lambda v: v[1:4])(variable), whole[1:4])
