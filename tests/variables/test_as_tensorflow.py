"""A variable in shards answers as TensorFlow's ShardedVariable does, wherever that one is right.

Where it is not, ``test_where_tensorflow_differs.py`` says how.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reshard
from reshard import IndexedSlices, ShardedVariable
from tests.campaigns import examples
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("tensorflow")

NEAR = {"min_value": -9, "max_value": 9, "allow_subnormal": False}
"""TensorFlow takes numbers below the normal ones for 0 on some processors."""

NEW_VALUES = ["assign", "assign_add", "assign_sub"]
SCATTERS = ["add", "sub", "mul", "div", "max", "min", "update"]
STEPS = st.sampled_from([None, 1, 2, 3, -1, -2, -3])


def shards_of(whole: Any, sizes: list[int]) -> list[Any]:
    return [np.ascontiguousarray(s) for s in np.split(whole, np.cumsum(sizes)[:-1])]


def even(whole: Any, count: int) -> list[Any]:
    return [np.ascontiguousarray(s) for s in np.array_split(whole, count)]


def holders(shards: list[Any]) -> list[list[Any]]:
    """The shards as numpy arrays, and as those of jax where it keeps their dtype."""
    narrowed = jax.dtypes.canonicalize_dtype(shards[0].dtype) != shards[0].dtype
    return [shards] if narrowed else [shards, list(map(jnp.asarray, shards))]


def tables(rows: int = 9) -> Any:
    """Also of the dtypes that numpy makes by default, which jax would narrow."""
    dtypes = st.sampled_from([np.float32, np.int32, np.float64, np.int64])
    shapes = st.tuples(st.integers(1, rows), st.just(3))
    large = {np.float64: 1 + 2.0**-40, np.int64: 1 << 40}
    return dtypes.flatmap(lambda d: hnp.arrays(d, shapes, elements=st.integers(-9, 9).map(lambda n: d(n * large.get(d, 1)))))  # fmt: skip


def answered_wrongly(items: list[Any], single: bool, rows: int) -> bool:
    """The slices of which TensorFlow's ShardedVariable answers some with other elements than NumPy."""
    first, rest = items[0], items[1:]
    if isinstance(first, slice):
        start, step = first.start or 0, first.step or 1
        beyond = (step > 1 and start < -rows) or (step < -1 and start >= rows)
        return beyond or (bool(rest) and not range(*first.indices(rows)))
    if first is None:
        return any(i is not None and i is not Ellipsis and i != slice(None) for i in rest)
    if first is Ellipsis:
        dims = sum(i is not None for i in rest)
        return dims == 2 and not single
    return False


@st.composite
def sliced(draw: Any) -> tuple[Any, list[int], list[Any], bool]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rows = sum(sizes)
    whole = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    ends = st.none() | st.integers(-rows - 3, rows + 3)
    slices = st.builds(slice, ends, ends, STEPS)
    if draw(st.booleans()):
        first: Any = slices | st.integers(-rows, rows - 1) | st.just(Ellipsis) | st.none()
        return whole, sizes, [draw(first)], True
    shape = st.just(whole.shape)
    items = draw(shape.flatmap(lambda s: hnp.basic_indices(s, allow_newaxis=True, max_dims=5)))
    return whole, sizes, list(items) if isinstance(items, tuple) and items else [Ellipsis], False


@settings(max_examples=examples(20))
@given(case=sliced())
def test_slices(tensorflow: Oracle, case: Any) -> None:
    whole, sizes, items, single = case
    shards = shards_of(whole, sizes)
    index = items[0] if single else tuple(items)
    ours, on_jax = ShardedVariable(shards)[index], ShardedVariable(list(map(jnp.asarray, shards)))
    np.testing.assert_array_equal(on_jax[index], ours, strict=True)
    if not answered_wrongly(items, single, len(whole)):
        theirs = tensorflow.ask("index", shards=shards, items=items, single=single)
        np.testing.assert_array_equal(ours, theirs, strict=True)


@given(data=st.data())
def test_masks(tensorflow: Oracle, data: Any) -> None:
    whole, mask_rank = data.draw(tables()), data.draw(st.integers(1, 2))
    mask = data.draw(hnp.arrays(bool, whole.shape[:mask_rank]))
    shards = even(whole, data.draw(st.integers(1, 3)))
    theirs = tensorflow.ask("index", shards=shards, items=[mask], single=True)
    np.testing.assert_array_equal(ShardedVariable(shards)[mask], theirs, strict=True)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_assign(tensorflow: Oracle, data: Any) -> None:
    whole, method = data.draw(tables()), data.draw(st.sampled_from(NEW_VALUES))
    value = data.draw(hnp.arrays(whole.dtype, whole.shape, elements=NEAR))  # fmt: skip
    sizes = np.diff([0, *sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)])  # fmt: skip
    shards = shards_of(whole, list(sizes))
    theirs = tensorflow.ask("change", shards=shards, method=method, arguments=[value])
    for held in holders(shards):
        ours = getattr(ShardedVariable(held), method)(value)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other, strict=True)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_scatter(tensorflow: Oracle, data: Any) -> None:
    whole = data.draw(tables())
    method = data.draw(
        st.sampled_from([*[f"scatter_{s}" for s in SCATTERS], "batch_scatter_update"])
    )
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)), np.int32)
    values = data.draw(hnp.arrays(whole.dtype, (len(indices), 3), elements=st.sampled_from([1, 2, 3, -4])))  # fmt: skip
    shards = even(whole, data.draw(st.integers(1, len(whole))))
    theirs = tensorflow.ask("change", shards=shards, method=method, arguments=[indices, values])
    for held in holders(shards):
        ours = getattr(ShardedVariable(held), method)(IndexedSlices(values, indices))
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, strict=True)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_sparse_read_but_for_the_order_of_rows(tensorflow: Oracle, data: Any) -> None:
    whole = data.draw(tables())
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)), np.int32)
    shards = even(whole, data.draw(st.integers(1, len(whole))))
    variable = ShardedVariable(shards)
    grouped = [i for held in variable.rows for i in indices.tolist() if i in held]
    theirs = tensorflow.ask("sparse_read", shards=shards, indices=indices)
    np.testing.assert_array_equal(variable.sparse_read(grouped), theirs, strict=True)
    np.testing.assert_array_equal(variable.sparse_read(indices), whole[indices], strict=True)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_embedding_lookup(tensorflow: Oracle, data: Any) -> None:
    rows, strategy = data.draw(st.integers(1, 13)), data.draw(st.sampled_from(["div", "mod"]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    whole = np.arange(rows * 3, dtype=dtype).reshape(rows, 3)
    count = data.draw(st.integers(1, min(5, rows)))
    variable = ShardedVariable.split(whole, count, partition_strategy=strategy)
    shape = data.draw(hnp.array_shapes(max_dims=2, max_side=4))
    ids = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(0, rows - 1)))
    norm = data.draw(st.none() | st.floats(0.5, 20, width=32))
    theirs = tensorflow.ask(
        "embedding_lookup", shards=list(map(np.asarray, variable)), ids=ids, strategy=strategy,
        max_norm=norm, plain=True,
    )  # fmt: skip
    ours = variable.embedding_lookup(ids, strategy, max_norm=norm)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, strict=True)


def test_embedding_lookup_in_a_variable_of_theirs(tensorflow: Oracle) -> None:
    whole = np.arange(13, dtype=np.float32)
    ids = np.array([0, 12, 4, 5], np.int32)
    for strategy in ("div", "mod"):
        variable = ShardedVariable.split(whole, 5, partition_strategy=strategy)
        if strategy == "mod":
            assert [np.asarray(v).tolist() for v in variable] == [whole[i::5].tolist() for i in range(5)]  # fmt: skip
        plain = tensorflow.ask(
            "embedding_lookup", shards=list(map(np.asarray, variable)), ids=ids,
            strategy=strategy, max_norm=None, plain=True,
        )  # fmt: skip
        np.testing.assert_array_equal(variable.embedding_lookup(ids), plain)


def test_construction(tensorflow: Oracle) -> None:
    for dtype in (np.float32, np.float64, np.int64, bool):
        whole = np.zeros((30, 100), dtype)
        shards = shards_of(whole, [10, 15, 5])
        theirs = tensorflow.ask("construct", shards=shards)
        ours = ShardedVariable(shards, name="v")
        shape = ours.shape.as_list()
        assert {"shape": shape, "dtype": ours.dtype.name, "name": ours.name} == theirs


@pytest.mark.parametrize(
    "shards",
    [
        [[1.0, 2.0], [3.0]], [[[1, 2]], [[3, 4], [5, 6]]], [[True], [False]], [[1, 2.5], [3.0]], [[1 << 40], [-1 << 40]],
        [[1e-300]], [[]],
    ],
)  # fmt: skip
def test_lists_are_arrays(tensorflow: Oracle, shards: list[Any]) -> None:
    theirs = tensorflow.ask("of_lists", shards=shards)
    ours = ShardedVariable(shards)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)
    assert ours.shape.as_list() == [sum(map(len, shards)), *theirs[0].shape[1:]]
    whole = ShardedVariable.split([item for shard in shards for item in shard], len(shards))
    np.testing.assert_array_equal(whole.numpy(), ours.numpy(), strict=True)


@settings(max_examples=examples(20))
@given(data=st.data())
def test_saved_and_restored_in_other_shards(
    tensorflow: Oracle, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """``tf.train.Checkpoint`` and ``reshard.save``: what a variable of other shards then holds."""
    folder = tmp_path_factory.mktemp("saved")
    whole = data.draw(tables())
    shards = even(whole, data.draw(st.integers(1, len(whole))))
    count = data.draw(st.integers(1, len(whole)))
    theirs = tensorflow.ask("saved_as", shards=shards, count=count, folder=str(folder / "theirs"))
    reshard.save(folder / "ours", {"v": ShardedVariable(shards)})
    ours = reshard.restore(folder / "ours", {"v": ShardedVariable.split(whole * 0, count)})["v"]
    plain = reshard.restore(folder / "ours")["v"]
    np.testing.assert_array_equal(plain, whole, strict=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert isinstance(mine, np.ndarray)
        np.testing.assert_array_equal(mine, other, strict=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "pow", "lt", "ge", "eq", "ne"]
)
def test_operators(tensorflow: Oracle, name: str, dtype: Any) -> None:
    import operator

    whole = np.arange(1, 8, dtype=dtype)
    other = np.array([1, 2, 3, 1, 2, 3, 1], dtype)
    shards = even(whole, 3)
    theirs = tensorflow.ask("operate", name=name, shards=shards, other=other)
    ours = getattr(operator, name)(ShardedVariable(shards), other)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, strict=True)
