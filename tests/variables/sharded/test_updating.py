"""Changes of a variable are NumPy's changes of the array it is, in full or not at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    IndexedSlices,
    ShardedVariable,
    VariableError,
    VariableIndexError,
    VariableTypeError,
)


def keep_first(whole: Any, at: Any, values: Any) -> None:
    whole[at] = values


def truncated_divide(whole: Any, at: Any, values: Any) -> None:
    for i, v in zip(at, values, strict=True):
        whole[i] = np.trunc(whole[i] / v).astype(whole.dtype)


NUMPY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scatter_add": np.add.at, "scatter_sub": np.subtract.at, "scatter_mul": np.multiply.at,
    "scatter_max": np.maximum.at, "scatter_min": np.minimum.at, "scatter_div": truncated_divide,
    "scatter_update": keep_first, "batch_scatter_update": keep_first,
}  # fmt: skip


@st.composite
def scatters(draw: Any) -> tuple[Any, ...]:
    """A variable, its array, indices that may repeat, and values for them."""
    axis, size, count = draw(st.integers(0, 2)), draw(st.integers(1, 9)), draw(st.integers(0, 7))
    shape = [size, 3, 2]
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    whole = seed.integers(-20, 20, shape, np.int32)
    variable = ShardedVariable.split(
        whole, draw(st.integers(1, 4)), axis=axis,
        partition_strategy=draw(st.sampled_from(["div", "mod"])),
        devices=jax.devices()[: draw(st.integers(1, 2))],
    )  # fmt: skip
    indices = np.array(
        draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count)), np.int64
    )
    values = seed.integers(1, 5, [count, 3, 2], np.int32)
    return variable, whole, indices, values


@given(scatters(), st.sampled_from(sorted(NUMPY)), st.booleans())
def test_scatter(case: tuple[Any, ...], method: str, as_slices: bool) -> None:
    variable, whole, indices, values = case
    devices = [v.devices() for v in variable]
    scatter = getattr(variable, method)
    returned = scatter(IndexedSlices(values, indices)) if as_slices else scatter(indices, values)
    NUMPY[method](whole, indices, values)
    assert returned is variable
    np.testing.assert_array_equal(variable.numpy(), whole, strict=True)
    assert [v.devices() for v in variable] == devices


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("axis", [0, 1])
def test_assign(strategy: str, axis: int) -> None:
    whole = np.arange(15, dtype=np.float32).reshape(5, 3)
    variable = ShardedVariable.split(whole, 2, axis=axis, partition_strategy=strategy, devices=jax.devices()[1:3])  # fmt: skip
    assert variable.assign_add(jnp.asarray(whole)) is variable
    np.testing.assert_array_equal(variable.numpy(), whole * 2)
    variable.assign_sub(ShardedVariable.split(whole, 5))
    np.testing.assert_array_equal(variable.numpy(), whole)
    variable.assign(whole[::-1])
    np.testing.assert_array_equal(variable.numpy(), whole[::-1])
    variable.assign([[1, 2, 3]] * 5)
    np.testing.assert_array_equal(variable.numpy()[4], [1, 2, 3])
    assert [v.devices() for v in variable] == [{d} for d in jax.devices()[1:3]]


def test_values_are_copied() -> None:
    variable = ShardedVariable([np.ones((64, 64), np.float32)])
    value = np.zeros((64, 64), np.float32)
    variable.assign(value)
    value[:] = 1
    assert not variable.numpy().any()


def test_upstreams_way_of_calling() -> None:
    variable = ShardedVariable.split(np.zeros(4, np.float32), 2)
    variable.scatter_add(IndexedSlices([1.0, 2.0], [0, 3]), False, "op")
    variable.scatter_add(sparse_delta=IndexedSlices([1.0], [0]), use_locking=True, name="op")
    variable.assign_add([1.0] * 4, use_locking=False, name="op", read_value=False)
    assert variable.numpy().tolist() == [3, 1, 1, 3]
    assert variable.sparse_read([3, 0], name="op").tolist() == [3, 3]


def test_every_value_counts_in_its_turn() -> None:
    variable = ShardedVariable.split(np.array([7, -7, 100], np.int32), 2)
    variable.scatter_div([0, 1, 2, 2], [2, 2, 3, 3])
    assert variable.numpy().tolist() == [3, -3, 11]
    variable.scatter_update([1, 0, 1], [5, 6, 7])
    assert variable.numpy().tolist() == [6, 7, 11]
    variable.scatter_mul([], np.zeros(0, np.int32))
    assert variable.numpy().tolist() == [6, 7, 11]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.int8, np.uint8])
def test_python_numbers_take_the_dtype(dtype: Any) -> None:
    variable = ShardedVariable.split(np.ones(3, dtype), 2)
    assert variable.assign([1, 2, 3]).scatter_add([1], [4]).dtype == dtype
    assert variable.numpy().tolist() == [1, 6, 3]


def test_rows_of_shards_over_meshes() -> None:
    """The mesh divides the shards, and need not divide the rows that change."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    for spec in (PartitionSpec("x"), PartitionSpec(None, "x")):
        place = NamedSharding(mesh, spec)
        variable = ShardedVariable.split(np.ones((8, 2), np.float32), 2, devices=[place])
        for method in NUMPY:
            getattr(variable, method)([0, 1, 2, 5], np.ones((4, 2), np.float32))
        assert variable.numpy().tolist() == np.ones((8, 2)).tolist()
        assert [v.sharding for v in variable] == [place, place]


def test_threads_lose_no_change() -> None:
    variable = ShardedVariable.split(np.zeros((8, 2), np.float32), 4)

    def count(row: int) -> None:
        for _ in range(30):
            variable.scatter_add([row], [[1, 1]])
            variable.assign_add(np.ones((8, 2), np.float32))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))
    assert variable.numpy()[:, 0].tolist() == [150] * 4 + [120] * 4


def test_rows_gone_by_donation() -> None:
    variable = ShardedVariable.split(jnp.zeros((4, 2), np.float32), 2, "w")
    moved = jax.jit(lambda v: jax.tree.map(lambda x: x + 1, v), donate_argnums=0)(variable)
    for use in (
        variable.numpy, lambda: variable[1], lambda: variable + 1, lambda: variable.sparse_read([1]),
        lambda: variable.assign_add(moved), lambda: variable.scatter_add([0], [[1, 1]]),
    ):  # fmt: skip
        with pytest.raises(VariableError, match="a shard of 'w' was donated or deleted"):
            use()
    gone = jnp.ones((4, 2))
    gone.delete()
    with pytest.raises(VariableError, match="given to assign of 'w' was donated or deleted"):
        variable.assign(gone)
    assert variable.assign(moved).numpy().tolist() == [[1, 1]] * 4


ROWS, I8 = np.zeros((3, 2), np.float32), np.zeros(3, np.int8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda v: v.assign(ROWS[:2]), VariableError, r"assign of 'w' expects values of shape \[5, 2\], not \[3, 2\]|not \[2, 2\]"),
        (lambda v: v.assign(np.zeros((6, 2), np.float32)), VariableError, r"expects values of shape \[5, 2\], not \[6, 2\]"),
        (lambda v: v.assign(1.0), VariableError, r"expects values of shape \[5, 2\], not \[\]"),
        (lambda v: v.assign_add([[1.0], [2.0, 3.0]]), VariableError, "assign_add of 'w' was given no array"),
        (lambda v: v.assign(np.zeros((5, 2))), VariableTypeError, "assign of 'w' expects values of dtype float32, not float64; cast them first"),
        (lambda v: v.assign_sub(jnp.zeros((5, 2), jnp.int32)), VariableTypeError, "assign_sub of 'w' expects values of dtype float32, not int32"),
        (lambda v: v.assign([["a", "b"]] * 5), VariableTypeError, "which the given str"),
        (lambda v: v.assign([[1j, 1]] * 5), VariableTypeError, "which the given complex128 numbers cannot become"),
        (lambda v: v.assign([[True, False]] * 5), VariableTypeError, "which the given bool numbers cannot become"),
        (lambda v: v.assign(np.ma.array(np.zeros((5, 2), np.float32), mask=True)), VariableTypeError, "assign of 'w' was given a masked array; fill it first"),
        (lambda v: v.assign(jax.ShapeDtypeStruct((5, 2), np.float32)), VariableTypeError, "values of dtype float32, not object"),
        (lambda v: v.scatter_add(jax.ShapeDtypeStruct((1,), np.int32), ROWS), VariableTypeError, "expects whole numbers as indices, not object"),
        (lambda v: v.assign(jnp.float32), VariableTypeError, "values of dtype float32, not object"),
        (lambda v: v.embedding_lookup([0], max_norm=-1.0), VariableError, "max_norm for 'w' must be at least 0, not -1.0"),
        (lambda v: v.embedding_lookup([0], max_norm=float("nan")), VariableError, "must be at least 0, not nan"),
        (lambda v: v.embedding_lookup([0], max_norm="1"), VariableTypeError, "max_norm for 'w' must be a number, not '1'"),
        (lambda v: v.scatter_add([0, 1, 5], ROWS), VariableIndexError, "scatter_add of 'w' was given index 5; it has rows 0 to 4"),
        (lambda v: v.scatter_max([0, -1, 2], ROWS), VariableIndexError, "scatter_max of 'w' was given index -1"),
        (lambda v: v.scatter_add([[0, 1, 2]], ROWS), VariableError, r"indices of one dimension, not of shape \[1, 3\]"),
        (lambda v: v.scatter_add(0, ROWS), VariableError, r"indices of one dimension, not of shape \[\]"),
        (lambda v: v.scatter_add([0.0, 1.0, 2.0], ROWS), VariableTypeError, "expects whole numbers as indices, not float64"),
        (lambda v: v.scatter_add([True, True, True], ROWS), VariableTypeError, "expects whole numbers as indices, not bool"),
        (lambda v: v.scatter_add([0, 1], ROWS), VariableError, r"expects values of shape \[2, 2\], not \[3, 2\]"),
        (lambda v: v.scatter_add([0, 1, 2], 1.0), VariableError, r"expects values of shape \[3, 2\], not \[\]"),
        (lambda v: v.scatter_update([0, 1, 2], ROWS.astype(np.float64)), VariableTypeError, "scatter_update of 'w' expects values of dtype float32, not float64"),
        (lambda v: v.batch_scatter_update([0, 1, 9], ROWS), VariableIndexError, "batch_scatter_update of 'w' was given index 9"),
        (lambda v: v.scatter_add([0, 1, 2]), VariableTypeError, "expects IndexedSlices.values, indices., or indices and values, not a list alone"),
        (lambda v: v.sparse_read([0, 5]), VariableIndexError, "sparse_read of 'w' was given index 5"),
        (lambda v: v.sparse_read([[0]]), VariableError, "sparse_read of 'w' expects indices of one dimension"),
        (lambda v: v.embedding_lookup([[0, -1]]), VariableIndexError, "embedding_lookup of 'w' was given index -1"),
        (lambda v: v.embedding_lookup([0.5]), VariableTypeError, "embedding_lookup of 'w' expects whole numbers"),
        (lambda v: v.embedding_lookup([0], "mod"), VariableError, "'w' is split by 'div'; a look-up by 'mod' would find other rows"),
        (lambda v: v.embedding_lookup([0], "moddd"), VariableError, "'div' or 'mod', not 'moddd'"),
    ],
)  # fmt: skip
def test_refusals_change_nothing(change: Any, error: type[Exception], message: str) -> None:
    variable = ShardedVariable.split(np.arange(10, dtype=np.float32).reshape(5, 2), 2, "w")
    before = variable.variables
    with pytest.raises(error, match=message):
        change(variable)
    assert all(a is b for a, b in zip(variable, before, strict=True))


def test_refusals_by_dtype() -> None:
    whole = ShardedVariable.split(I8, 2, "w")
    with pytest.raises(
        VariableTypeError, match="int8, which the given int64 numbers cannot become"
    ):
        whole.assign([1, 2, 300])
    with pytest.raises(VariableTypeError, match="int8, which the given float64 numbers"):
        whole.assign([1.0, 2.0, 3.0])
    with pytest.raises(VariableError, match="scatter_div of 'w' would divide whole numbers by 0"):
        whole.scatter_div([0, 1], [1, 0])
    truth = ShardedVariable.split(np.zeros(3, bool), 2, "truth")
    for change in (lambda: truth.assign_add([True] * 3), lambda: truth.scatter_max([0], [True])):
        with pytest.raises(
            VariableTypeError, match="of 'truth' computes, which bool values cannot"
        ):
            change()
    assert truth.scatter_update([2], [True]).numpy().tolist() == [False, False, True]
    with pytest.raises(VariableIndexError, match="it has no rows"):
        ShardedVariable([ROWS[:0]]).sparse_read([0])


@pytest.mark.parametrize(
    ("holder", "steps"),
    [(jnp.asarray, ["_brought"]), (np.asarray, ["kept_numpy", "unwritable"])],
    ids=["jax", "numpy"],
)
def test_a_failure_on_the_last_shard_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, holder: Any, steps: list[str]
) -> None:
    from reshard.variables.sharded import updating

    variable = ShardedVariable.split(holder(np.arange(6, dtype=np.float32)), 3)
    calls: list[int] = []

    def failing(real: Any, *given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return real(*given)

    for step in steps:
        monkeypatch.setattr(updating, step, partial(failing, getattr(updating, step)))
    for change in (
        lambda: variable.assign([9.0] * 6),
        lambda: variable.scatter_add([0, 3, 5], [9.0] * 3),
    ):
        calls.clear()
        with pytest.raises(MemoryError):
            change()
    assert variable.numpy().tolist() == [0, 1, 2, 3, 4, 5]
