"""A variable in shards answers as TensorFlow's ShardedVariable does, wherever that one is right.

Where it is not, ``test_where_tensorflow_differs.py`` says how.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reshard import IndexedSlices, ShardedVariable
from tests.oracles.ask_tensorflow import TensorFlow

pytestmark = pytest.mark.xdist_group("tensorflow")

NEW_VALUES = ["assign", "assign_add", "assign_sub"]
SCATTERS = ["add", "sub", "mul", "div", "max", "min", "update"]
STEPS = st.sampled_from([None, 1, 2, 3, -1, -2, -3])


def shards_of(whole: Any, sizes: list[int]) -> list[Any]:
    return [np.ascontiguousarray(s) for s in np.split(whole, np.cumsum(sizes)[:-1])]


def even(whole: Any, count: int) -> list[Any]:
    return [np.ascontiguousarray(s) for s in np.array_split(whole, count)]


def tables(rows: int = 9) -> Any:
    dtypes = st.sampled_from([np.float32, np.int32])
    shapes = st.tuples(st.integers(1, rows), st.just(3))
    return dtypes.flatmap(lambda d: hnp.arrays(d, shapes, elements=st.integers(-9, 9).map(float) if d is np.float32 else st.integers(-9, 9)))  # fmt: skip


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


@settings(max_examples=40)
@given(case=sliced())
def test_slices(tensorflow: TensorFlow, case: Any) -> None:
    whole, sizes, items, single = case
    shards = shards_of(whole, sizes)
    ours = ShardedVariable(shards)[items[0] if single else tuple(items)]
    if not answered_wrongly(items, single, len(whole)):
        theirs = tensorflow.ask("index", shards=shards, items=items, single=single)
        np.testing.assert_array_equal(ours, theirs, strict=True)


@settings(max_examples=30)
@given(data=st.data())
def test_masks(tensorflow: TensorFlow, data: Any) -> None:
    whole, mask_rank = data.draw(tables()), data.draw(st.integers(1, 2))
    mask = data.draw(hnp.arrays(bool, whole.shape[:mask_rank]))
    shards = even(whole, data.draw(st.integers(1, 3)))
    theirs = tensorflow.ask("index", shards=shards, items=[mask], single=True)
    np.testing.assert_array_equal(ShardedVariable(shards)[mask], theirs, strict=True)


@settings(max_examples=40)
@given(data=st.data())
def test_assign(tensorflow: TensorFlow, data: Any) -> None:
    whole, method = data.draw(tables()), data.draw(st.sampled_from(NEW_VALUES))
    value = data.draw(hnp.arrays(whole.dtype, whole.shape, elements={"min_value": -9, "max_value": 9}))  # fmt: skip
    sizes = np.diff([0, *sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)])  # fmt: skip
    shards = shards_of(whole, list(sizes))
    theirs = tensorflow.ask("change", shards=shards, method=method, arguments=[value])
    ours = getattr(ShardedVariable(shards), method)(value)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)


@settings(max_examples=40)
@given(data=st.data())
def test_scatter(tensorflow: TensorFlow, data: Any) -> None:
    whole = data.draw(tables())
    method = data.draw(
        st.sampled_from([*[f"scatter_{s}" for s in SCATTERS], "batch_scatter_update"])
    )
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)), np.int32)
    values = data.draw(hnp.arrays(whole.dtype, (len(indices), 3), elements=st.sampled_from([1, 2, 3, -4])))  # fmt: skip
    shards = even(whole, data.draw(st.integers(1, len(whole))))
    theirs = tensorflow.ask("change", shards=shards, method=method, arguments=[indices, values])
    ours = getattr(ShardedVariable(shards), method)(IndexedSlices(values, indices))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, strict=True)


@settings(max_examples=40)
@given(data=st.data())
def test_sparse_read_but_for_the_order_of_rows(tensorflow: TensorFlow, data: Any) -> None:
    whole = data.draw(tables())
    indices = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)), np.int32)
    shards = even(whole, data.draw(st.integers(1, len(whole))))
    variable = ShardedVariable(shards)
    grouped = [i for held in variable.rows for i in indices.tolist() if i in held]
    theirs = tensorflow.ask("sparse_read", shards=shards, indices=indices)
    np.testing.assert_array_equal(variable.sparse_read(grouped), theirs, strict=True)
    np.testing.assert_array_equal(variable.sparse_read(indices), whole[indices], strict=True)


@settings(max_examples=40)
@given(data=st.data())
def test_embedding_lookup(tensorflow: TensorFlow, data: Any) -> None:
    rows, strategy = data.draw(st.integers(1, 13)), data.draw(st.sampled_from(["div", "mod"]))
    whole = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
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


def test_embedding_lookup_in_a_variable_of_theirs(tensorflow: TensorFlow) -> None:
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


def test_construction(tensorflow: TensorFlow) -> None:
    whole = np.zeros((30, 100), np.float32)
    shards = shards_of(whole, [10, 15, 5])
    theirs = tensorflow.ask("construct", shards=shards)
    ours = ShardedVariable(shards, name="v")
    assert {"shape": list(ours.shape), "dtype": ours.dtype.name, "name": ours.name} == theirs


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "pow", "lt", "ge", "eq", "ne"]
)
def test_operators(tensorflow: TensorFlow, name: str) -> None:
    import operator

    whole = np.arange(1, 8, dtype=np.float32)
    other = np.array([1, 2, 3, 1, 2, 3, 1], np.float32)
    shards = even(whole, 3)
    theirs = tensorflow.ask("operate", name=name, shards=shards, other=other)
    ours = getattr(operator, name)(ShardedVariable(shards), other)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, strict=True)
