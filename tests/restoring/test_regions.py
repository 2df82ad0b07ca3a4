"""Buffers against numpy: any box or row range of a tensor, filled from pieces in any order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.buffers import aligned_empty
from reshard.errors import StorageError
from reshard.geometry.grid import Box, Grid
from reshard.restoring.regions import Buffer, Region

SHAPES = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)


@st.composite
def grids(draw, shape):
    cuts = [sorted({0, n, *draw(st.sets(st.integers(1, n), max_size=3))}) for n in shape]
    return Grid(shape, tuple(map(tuple, cuts)))


@st.composite
def cases(draw):
    """A tensor's shape, a region of it, and the grid in whose pieces it arrives."""
    shape = draw(SHAPES)
    if shape and draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        step = draw(st.integers(1, 4))
        first = draw(st.integers(0, shape[axis]))
        region = Region.rows(shape, axis, range(first, shape[axis], step))
    else:
        pairs = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
        region = Region(Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)))
    return shape, region, draw(grids(shape)), draw(st.randoms())


def taken(values, region):
    slices = [slice(a, b) for a, b in zip(region.box.start, region.box.stop, strict=True)]
    if region.step > 1:
        slices[region.axis] = slice(
            region.box.start[region.axis], region.box.stop[region.axis], region.step
        )
    return values[tuple(slices)]


@given(cases())
def test_pieces_in_any_order_make_what_numpy_takes(case):
    shape, region, grid, random = case
    values = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    buffer = Buffer(region, "int32", "int32")
    boxes = list(grid.boxes())
    random.shuffle(boxes)
    for box in boxes:
        direct = buffer.direct(box)
        if direct is None:
            buffer.put(values[box.slices], box)
        else:
            direct[:] = np.ascontiguousarray(values[box.slices]).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(buffer.array, taken(values, region))
    assert region.shape == taken(values, region).shape
    assert sum(region.count_in(box) for box in boxes) == region.size


@given(cases())
def test_a_cast_gives_what_numpy_gives(case):
    shape, region, grid, _ = case
    values = np.linspace(-3, 3, math.prod(shape), dtype=np.float32).reshape(shape)
    buffer = Buffer(region, "float32", "float16")
    for box in grid.boxes():
        assert buffer.direct(box) is None
        buffer.put(values[box.slices], box)
    np.testing.assert_array_equal(buffer.array, taken(values, region).astype(np.float16))


def test_buffers_are_aligned_for_jax_to_adopt():
    for nbytes in (1, 63, 64, 1 << 20):
        memory = aligned_empty(nbytes)
        assert memory.nbytes == nbytes
        assert memory.ctypes.data % 64 == 0


def test_memory_that_the_system_refuses_is_named():
    region = Region(Box((0,), (1 << 60,)))
    text = r"the system refused .* of memory for a part of a tensor \(.*\); restore fewer tensors \(select\), or on more hosts"
    with pytest.raises(StorageError, match=text):
        Buffer(region, "uint8", "uint8")


def test_direct_needs_contiguous_bytes_of_one_buffer():
    buffer = Buffer(Region(Box((2, 0), (6, 8))), "float32", "float32")
    assert buffer.direct(Box((2, 0), (4, 8))).nbytes == 2 * 8 * 4
    assert buffer.direct(Box((2, 0), (4, 4))) is None  # rows with gaps
    assert buffer.direct(Box((0, 0), (4, 8))) is None  # reaches beyond the buffer
    assert (
        Buffer(Region.rows((9, 2), 0, range(1, 9, 3)), "int8", "int8").direct(Box((1, 0), (2, 2)))
        is None
    )


def test_rows_of_every_shard_cover_a_table_once():
    shape = (13, 2)
    regions = [Region.rows(shape, 0, range(s, 13, 5)) for s in range(5)]
    assert [h.shape for h in regions] == [(3, 2), (3, 2), (3, 2), (2, 2), (2, 2)]
    rows = itertools.chain.from_iterable(
        range(h.box.start[0], h.box.stop[0], h.step) for h in regions
    )
    assert sorted(rows) == list(range(13))
