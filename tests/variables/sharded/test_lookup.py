"""Rows by id: what NumPy takes, for tables split either way, eagerly and under jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import ShardedVariable, VariableError, VariableTypeError, embedding_lookup


def table(strategy: str, shards: int = 5, axis: int = 0, **options: Any) -> ShardedVariable:
    whole = np.arange(39, dtype=np.float32).reshape(13, 3)
    return ShardedVariable.split(whole, shards, "t", axis=axis, partition_strategy=strategy, **options)  # fmt: skip


@given(
    st.sampled_from(["div", "mod"]), st.integers(1, 15), st.integers(0, 1),
    st.lists(st.integers(0, 12), max_size=8), st.integers(1, 3),
)  # fmt: skip
def test_rows_come_in_the_requested_order(
    strategy: str, shards: int, axis: int, ids: list[int], devices: int
) -> None:
    variable = table(strategy, shards, axis, devices=jax.devices()[:devices])
    expected = variable.numpy()[np.asarray(ids, int)]
    np.testing.assert_array_equal(variable.sparse_read(ids), expected, strict=True)
    np.testing.assert_array_equal(variable.embedding_lookup(ids), expected, strict=True)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
def test_jit(strategy: str, axis: int, dtype: Any) -> None:
    variable = table(strategy, axis=axis)
    ids = jnp.array([[12, 0, 5], [5, 7, 11]], dtype)
    found = jax.jit(lambda v, i: v.embedding_lookup(i, strategy))(variable, ids)
    np.testing.assert_array_equal(found, variable.numpy()[np.asarray(ids)], strict=True)
    closed_over = jax.jit(variable.sparse_read)(ids[1])
    np.testing.assert_array_equal(closed_over, found[1])
    known = jax.jit(lambda v: v.embedding_lookup([3, 9]))(variable)
    np.testing.assert_array_equal(known, variable.numpy()[[3, 9]])


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_traced_ids_out_of_range_are_no_row(strategy: str) -> None:
    lookup = jax.jit(lambda v, i: v.embedding_lookup(i))
    found = lookup(table(strategy), jnp.array([13, -1, 12]))
    assert np.isnan(found[:2]).all()
    assert found[2, 0] == 36
    whole = ShardedVariable.split(np.arange(4, dtype=np.int8), 2, partition_strategy=strategy)
    assert lookup(whole, jnp.array([4, 1])).tolist() == [-128, 1]


def test_a_table_with_more_rows_than_the_ids_can_count() -> None:
    rows = np.arange(600, dtype=np.int32)
    variable = ShardedVariable.split(rows, 3)
    found = jax.jit(lambda v, i: v.embedding_lookup(i))(
        variable, jnp.array([0, 201, 255], jnp.uint8)
    )
    assert found.tolist() == [0, 201, 255]


def test_a_scalar_id_is_one_row() -> None:
    assert table("mod").embedding_lookup(7).tolist() == [21, 22, 23]
    assert table("div").embedding_lookup(np.zeros((2, 0), np.int64)).shape == (2, 0, 3)


def test_rows_scaled_down_to_a_norm() -> None:
    variable = ShardedVariable.split(np.array([[3.0, 4], [0, 0], [0.3, 0.4]], np.float32), 2)
    found = variable.embedding_lookup([0, 1, 2], max_norm=1.0)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [0.3, 0.4]], rtol=1e-6)


def test_only_rows_of_floating_point_have_a_norm() -> None:
    for dtype in (np.int32, np.complex64, bool):
        variable = ShardedVariable.split(np.ones((3, 2), dtype), 2, "t")
        with pytest.raises(
            VariableTypeError, match="max_norm scales rows of floating point, but 't'"
        ):
            variable.embedding_lookup([0], max_norm=0.5)


def test_only_owners_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from reshard.variables.sharded import reading

    shapes: list[tuple[int, ...]] = []
    real = reading.on_one_device
    monkeypatch.setattr(reading, "on_one_device", lambda a: (shapes.extend(x.shape for x in a), real(a))[1])  # fmt: skip
    table("mod").embedding_lookup([7, 2, 12])
    assert shapes == [(3, 3)]  # 7, 2 and 12 are all in shard 2


def test_a_look_up_as_a_function_takes_a_variable_or_its_shards() -> None:
    for strategy in ("div", "mod"):
        variable = table(strategy)
        for params in (variable, variable.variables):
            found = embedding_lookup(params, [[7, 2], [0, 12]], partition_strategy=strategy)
            assert found.tolist() == variable.embedding_lookup([[7, 2], [0, 12]]).tolist()
    assert embedding_lookup(table("mod").variables, 7).tolist() == [21, 22, 23]
    assert embedding_lookup(table("div"), 7).tolist() == [21, 22, 23]


def test_a_look_up_by_another_strategy_than_the_table_s_is_refused() -> None:
    with pytest.raises(
        VariableError, match="is split by 'div'; a look-up by 'mod' would find other"
    ):
        embedding_lookup(table("div"), [1], partition_strategy="mod")
