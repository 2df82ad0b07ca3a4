"""Shards of numpy stay numpy, with any dtype; shards that go to jax need a dtype of jax."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np
import optax
import pytest

import reshard
from reshard import FixedShardsPartitioner, MaxSizePartitioner, ShardedVariable, VariableTypeError

WHOLE = np.arange(14.0).reshape(7, 2) / 3
IDS = np.array([6, 0, 6, 3])


@pytest.fixture(params=[("div", 0), ("mod", 0), ("div", 1)], ids=["div", "mod", "columns"])
def table(request: pytest.FixtureRequest) -> ShardedVariable:
    strategy, axis = request.param
    return ShardedVariable.split(WHOLE, 2, "table", axis=axis, partition_strategy=strategy)


def test_what_is_read_is_numpy_and_exact(table: ShardedVariable) -> None:
    for found, expected in [
        (table[2:5], WHOLE[2:5]), (table[::-2, 1], WHOLE[::-2, 1]), (table[IDS], WHOLE[IDS]),
        (table[3, 1], WHOLE[3, 1, None].reshape(())), (table[WHOLE > 1], WHOLE[WHOLE > 1]), (table[None, True, 1], WHOLE[None, True, 1]),
        (table.sparse_read(IDS), WHOLE[IDS]), (table.embedding_lookup(IDS[None]), WHOLE[IDS][None]),
        (table.numpy(), WHOLE), (table + table, WHOLE * 2), (1 - table, 1 - WHOLE), (table / WHOLE[1], WHOLE / WHOLE[1]),
        (table < 2, WHOLE < 2), (-table, -WHOLE), (abs(table), WHOLE), (table @ WHOLE.T, WHOLE @ WHOLE.T),
    ]:  # fmt: skip
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, expected, strict=True)
    assert all(isinstance(shard, np.ndarray) for shard in table)
    assert table.dtype == np.float64


def test_rows_above_a_norm_are_scaled(table: ShardedVariable) -> None:
    found = table.embedding_lookup([6, 0], max_norm=2)
    expected = WHOLE[6] * 2 / np.linalg.norm(WHOLE[6])
    np.testing.assert_allclose(found, [expected, WHOLE[0]], rtol=1e-15, strict=True)


def test_what_is_read_may_be_written_to_and_shards_may_not(table: ShardedVariable) -> None:
    for found in (table[:], table[0:1], table.numpy(), table.sparse_read([0]), table[...]):
        found[...] = -1
    np.testing.assert_array_equal(table.numpy(), WHOLE)
    copies = [table, copy.deepcopy(table), copy.copy(table), pickle.loads(pickle.dumps(table))]
    copies += [copy.deepcopy(table).assign(WHOLE), copy.deepcopy(table).scatter_add([0, 1, 2], WHOLE[:3] * 0)]  # fmt: skip
    for variable in copies:
        np.testing.assert_array_equal(variable.numpy(), WHOLE)
        for shard in variable.variables:
            with pytest.raises(ValueError, match="read-only"):
                shard[:] = 0


def test_int64_beyond_32_bits() -> None:
    variable = ShardedVariable([np.array([1 << 40, 3]), np.array([-1 << 50])], name="ids")
    assert variable.dtype == np.int64
    assert variable.assign_add([1, 1, 1]).scatter_div([0, 2], [2, 2]).numpy().tolist() == [1 << 39, 4, 1 - (1 << 49)]  # fmt: skip
    assert variable[0] == 1 << 39


@pytest.mark.parametrize(
    "partition", [3, FixedShardsPartitioner(3), MaxSizePartitioner(40), [3, 1]], ids=str
)
def test_partitioners(partition: Any) -> None:
    variable = ShardedVariable.split(WHOLE, partition)
    np.testing.assert_array_equal(variable.numpy(), WHOLE, strict=True)
    assert len(variable.variables) == (4 if isinstance(partition, MaxSizePartitioner) else 3)


GOES_TO_JAX = {
    "asarray": lambda v: jnp.asarray(v),
    "sum": lambda v: jnp.sum(v),
    "jit": lambda v: jax.jit(lambda x: x[0])(v),
    "grad": lambda v: jax.grad(lambda x: jnp.sum(x[0]))(v),
    "eval_shape": lambda v: jax.eval_shape(lambda x: x, v),
    "device_put": lambda v: jax.device_put(v),
    "an operand": lambda v: v + jnp.ones(2),
    "another variable": lambda v: ShardedVariable([jnp.ones((7, 2))]) * v,
    "traced index": lambda v: jax.jit(lambda i: v[i])(1),
    "traced ids": lambda v: jax.jit(v.sparse_read)(jnp.array([1])),
    "devices": lambda v: ShardedVariable.split(v, 2, "table", devices=jax.devices()),
    "optimizer": lambda v: optax.adam(0.1).init(v),
}


@pytest.mark.parametrize("use", GOES_TO_JAX)
def test_what_goes_to_jax_is_refused_there(table: ShardedVariable, use: str) -> None:
    with pytest.raises(
        VariableTypeError, match="'table' has dtype float64, which jax would narrow to float32"
    ):
        GOES_TO_JAX[use](table)
    np.testing.assert_array_equal(table.numpy(), WHOLE)


def test_with_64_bits_jax_takes_all_of_them(table: ShardedVariable) -> None:
    with jax.enable_x64(True):
        for use in GOES_TO_JAX.values():
            for leaf in jax.tree.leaves(use(table)):
                assert leaf.dtype in (np.float64, np.int32)
        np.testing.assert_array_equal(jnp.asarray(table), WHOLE, strict=True)


def test_float32_goes_to_jax_as_it_is() -> None:
    variable = ShardedVariable.split(WHOLE.astype(np.float32), 3)
    for use in GOES_TO_JAX.values():
        assert all(isinstance(x, jax.Array | jax.ShapeDtypeStruct) for x in jax.tree.leaves(use(variable)))  # fmt: skip
    mixed = ShardedVariable([np.ones(2, np.float32), jnp.ones(3)])
    assert all(isinstance(shard, jax.Array) for shard in mixed)


def test_as_a_tree(table: ShardedVariable) -> None:
    doubled = jax.tree.map(lambda shard: shard * 2, table)
    np.testing.assert_array_equal(doubled.numpy(), WHOLE * 2, strict=True)
    narrow = jax.tree.map(lambda shard: shard.astype(np.float32), table)
    np.testing.assert_array_equal(jnp.asarray(narrow), WHOLE.astype(np.float32), strict=True)
    assert jax.jit(lambda v: v[0])(narrow).dtype == np.float32
    both = jax.tree.map(lambda a, b: a + b, table, doubled)
    np.testing.assert_array_equal(both.numpy(), WHOLE * 3, strict=True)
    structs = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), table)
    assert (structs.shape, structs.dtype) == ((7, 2), np.float64)
    assert structs.assign(WHOLE).numpy().dtype == np.float64


def test_a_shape_is_a_tuple_and_a_list() -> None:
    shape = ShardedVariable([[[1.0, 2.0]], [[3.0, 4.0]]]).shape
    assert shape.as_list() == [2, 2]
    assert shape == (2, 2)
    assert hash(shape) == hash((2, 2))
    assert isinstance(shape, tuple)
    assert repr(shape) == "(2, 2)"
    assert (*shape, 1) == (2, 2, 1)
    for other in (pickle.loads(pickle.dumps(shape)), copy.deepcopy(shape)):
        assert other.as_list() == [2, 2]
    assert json.loads(json.dumps(shape)) == json.loads(msgspec.json.encode(shape)) == [2, 2]
    assert jax.tree.leaves({"shape": shape}) == [2, 2]
    assert jax.tree.map(lambda size: size + 1, shape) == (3, 3)
    assert jnp.zeros(shape).shape == np.zeros(shape).shape == shape
    assert jax.jit(jnp.zeros, static_argnums=0)(shape).shape == (2, 2)


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int64, np.uint64, np.complex128, np.float32, ml_dtypes.bfloat16, bool]
)
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_saved_and_restored(tmp_path: Path, dtype: Any, strategy: str) -> None:
    whole = (np.arange(14).reshape(7, 2) % 5).astype(dtype)
    saved = ShardedVariable.split(whole, 3, "t", partition_strategy=strategy)
    reshard.save(tmp_path / "c", {"t": saved})
    assert reshard.verify(tmp_path / "c").differences == 0
    np.testing.assert_array_equal(reshard.restore(tmp_path / "c")["t"], whole, strict=True)
    back = reshard.restore(tmp_path / "c", {"t": saved})["t"]
    assert (back.partition_strategy, back.name) == (strategy, "t")
    for mine, other in zip(back, saved, strict=True):
        assert isinstance(mine, np.ndarray)
        np.testing.assert_array_equal(mine, other, strict=True)
    parts = reshard.restore(tmp_path / "c", partition=2)["t"]
    np.testing.assert_array_equal(parts.numpy(), whole, strict=True)
    kept_by_jax = jax.dtypes.canonicalize_dtype(dtype) == dtype
    assert all(isinstance(part, jax.Array if kept_by_jax else np.ndarray) for part in parts)
    if not kept_by_jax:
        with pytest.raises(reshard.TreeError, match="which jax would narrow to"):
            reshard.restore(tmp_path / "c", partition=2, devices=jax.devices()[:2])


def test_saving_in_the_background_takes_what_it_is_given(tmp_path: Path) -> None:
    variable = ShardedVariable.split(WHOLE, 3)
    saving = reshard.save(tmp_path / "c", {"t": variable}, wait=False)
    variable.assign(WHOLE * 0)
    saving.wait()
    np.testing.assert_array_equal(reshard.restore(tmp_path / "c")["t"], WHOLE)
