"""Bands: every element once, in row-major order, within the bytes allowed."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reshard.geometry.grid import Box
from reshard.geometry.row_major import Band, band_capacity, bands, row_bytes


@st.composite
def chunks(draw):
    """A chunk's shape, the dimension from which chunks differ, its rows' bytes and a limit."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    open_dim = draw(st.integers(1, max(1, len(shape))))
    itemsize = draw(st.sampled_from([1, 2, 16]))
    return shape, open_dim, row_bytes(shape, itemsize) or [itemsize], draw(st.integers(1, 3000))


@st.composite
def parts(draw, shape):
    start = [draw(st.integers(0, n - 1)) for n in shape]
    stop = [draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True)]
    return Box(tuple(start), tuple(stop))


@given(chunks(), st.data())
def test_bands_are_the_chunk_in_order(chunk, data):
    shape, open_dim, rows, limit = chunk
    part = data.draw(st.none() | parts(shape))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    found = [
        numbers[band.box(shape).slices].reshape(-1)
        for band in bands(shape, open_dim, rows, limit, part)
    ]
    assert np.array_equal(np.concatenate(found), numbers.reshape(-1))


@given(chunks(), st.data())
def test_no_band_is_larger_than_the_capacity_that_is_planned(chunk, data):
    shape, open_dim, rows, limit = chunk
    part = data.draw(st.none() | parts(shape))
    itemsize = rows[-1]
    sizes = [b.box(shape).size * itemsize for b in bands(shape, open_dim, rows, limit, part)]
    capacity = band_capacity(shape, open_dim, rows, limit)
    assert max(sizes) <= capacity
    if part is None:
        assert max(sizes) == capacity
    smallest = rows[min(open_dim, len(shape)) - 1] if shape else itemsize
    assert capacity <= max(limit, smallest)


@given(chunks())
def test_dimensions_of_open_chunks_are_never_cut(chunk):
    shape, open_dim, rows, limit = chunk
    for band in bands(shape, open_dim, rows, limit):
        box = band.box(shape)
        assert all(box.shape[d] == shape[d] for d in range(open_dim, len(shape)))


@given(chunks(), st.data())
def test_a_band_holds_only_rows_that_are_wanted_or_none(chunk, data):
    shape, open_dim, rows, limit = chunk
    if not shape:
        return
    part = data.draw(parts(shape))
    for band in bands(shape, open_dim, rows, limit, part):
        dim = len(band.lead)
        inside = range(max(band.start, part.start[dim]), min(band.stop, part.stop[dim]))
        assert len(inside) in (0, band.stop - band.start)


def test_bands_of_whole_rows():
    found = list(bands((5, 4), 2, [16, 4], 40))
    assert found == [Band((), 0, 2), Band((), 2, 4), Band((), 4, 5)]


def test_a_row_above_the_limit_is_cut_along_the_next_dimension():
    found = list(bands((2, 4), 2, [16, 4], 8))
    assert found == [Band((0,), 0, 2), Band((0,), 2, 4), Band((1,), 0, 2), Band((1,), 2, 4)]


def test_a_scalar_is_one_band():
    (band,) = bands((), 0, [8], 1)
    assert band.box(()) == Box((), ())
    assert band_capacity((), 0, [8], 1) == 8
