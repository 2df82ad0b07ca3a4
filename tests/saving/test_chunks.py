"""Shards put together to chunks, against numpy indexing; and which process writes which chunk."""

from __future__ import annotations

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.formats.contents import Leaf
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.saving import plan as host_chunks
from reshard.saving.plan import elements, host_chunk, own_chunks, storage_chunk, writers
from reshard.saving.tensors import DeviceShard, LiveTensor, live_tensor
from reshard.saving.tree import live_leaves
from tests.orbax_trees import put
from tests.saving.states import random


def tensor_of(value):
    (leaf,) = live_leaves({"x": value})
    return live_tensor(leaf, is_own=False)


@st.composite
def tables(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    axis = draw(st.integers(0, len(shape) - 1))
    strategy = draw(st.sampled_from(["div", "mod"]))
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    count = draw(st.integers(1, 6))
    table = reshard.ShardedVariable.split(values, count, axis=axis, partition_strategy=strategy)
    chunk = tuple(draw(st.integers(1, n)) for n in shape)
    return values, table, chunk


@given(tables())
def test_chunks_of_a_variable_hold_its_rows_in_order(drawn):
    values, table, chunk = drawn
    tensor = tensor_of(table)
    storage = Grid.regular(values.shape, chunk)
    spec = TensorSpec("x", values.shape, "int32", storage, chunk)
    for box in storage.boxes():
        found = host_chunk(tensor, spec, box)
        assert found.shape == chunk
        np.testing.assert_array_equal(found[Box.full(box.shape).slices], values[box.slices])
        assert found.sum() == values[box.slices].sum()  # the padding is zeros


@pytest.mark.parametrize("axes", [("data", "model"), (None, "model"), (("model", "data"),), ()])
@pytest.mark.parametrize("chunk", [(3, 5), (8, 16), (2, 8), (16, 4)])
def test_chunks_of_jax_arrays(axes, chunk):
    values = random(16, 16)
    tensor = tensor_of(put(values, *axes))
    storage = Grid.regular(values.shape, chunk)
    spec = TensorSpec("x", values.shape, "float32", storage, chunk)
    for box in storage.boxes():
        found = host_chunk(tensor, spec, box)[Box.full(box.shape).slices]
        np.testing.assert_array_equal(found, values[box.slices])


def test_a_chunk_that_is_a_shard_is_a_view_of_it():
    array = put(random(16, 16), "data", "model")
    tensor = tensor_of(array)
    places = {s.data.unsafe_buffer_pointer() for s in array.addressable_shards}
    spec = TensorSpec("x", (16, 16), "float32", tensor.grid, (4, 8))
    found = {host_chunk(tensor, spec, box).ctypes.data for box in tensor.grid.boxes()}
    assert found == places


@pytest.mark.parametrize("box", [Box((1, 2), (3, 7)), Box((0, 0), (4, 8)), Box((3, 0), (4, 8))])
def test_elements_that_are_not_on_the_host_are_cut_out_on_the_device(monkeypatch, box):
    monkeypatch.setattr(host_chunks, "on_host", lambda _: False)
    data = jnp.arange(32.0).reshape(4, 8)
    found = elements(data, box)
    np.testing.assert_array_equal(found, np.arange(32.0).reshape(4, 8)[box.slices])
    assert getattr(data, "_npy_value", None) is None  # jax keeps no copy with the array


@st.composite
def spreads(draw):
    """A tensor in even parts, each held by some of a few processes."""
    parts = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2))
    shape = tuple(8 * n for n in parts)
    grid = Grid.regular(shape, [8] * len(parts))
    some = st.sets(st.integers(0, 3), min_size=1).map(lambda s: tuple(sorted(s)))
    shards = tuple(DeviceShard(box, draw(some)) for box in grid.boxes())
    return LiveTensor(Leaf("x", ()), shape, "int8", shards, grid, grid)


@given(st.lists(spreads(), max_size=3))
def test_each_chunk_is_written_once_by_a_process_that_holds_all_of_it(tensors):
    grids = [Grid.regular(t.shape, storage_chunk(t, (), 1 << 28, 4)) for t in tensors]
    named = list(zip(tensors, grids, strict=True))
    written = [own_chunks(named, process, 4) for process in range(4)]
    indices = sorted(p.index for p in itertools.chain(*written))
    assert indices == sorted(i for g in grids for i in g.indices())
    for tensor, grid in named:
        for box in grid.boxes():
            for shard in tensor.shards:
                if shard.box.intersect(box):
                    assert set(writers(tensor, box)) <= set(shard.holders)


def test_replicas_share_the_work():
    whole = Grid.whole((64,))
    tensors = [
        LiveTensor(
            Leaf(str(n), ()), (64,), "int8", (DeviceShard(Box((0,), (64,)), (0, 1)),), whole, whole
        )
        for n in range(10)
    ]
    found = [own_chunks([(t, whole) for t in tensors], process, 2) for process in (0, 1)]
    assert [len(chunks) for chunks in found] == [5, 5]


def test_devices_are_named_only_where_their_order_says_something():
    from reshard.saving.tensors import array_sharding

    plain, turned = put(random(8), "data"), jax.device_put(random(8), jax.devices()[5])
    assert array_sharding(plain.sharding, (8,), plain.sharding).recorded is None
    recorded = array_sharding(turned.sharding, (8,), turned.sharding).recorded
    wanted = {"sharding_type": "SingleDeviceSharding", "device_str": str(jax.devices()[5])}
    assert recorded is not None
    assert json.loads(recorded) == wanted
