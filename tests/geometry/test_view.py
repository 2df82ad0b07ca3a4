"""A view of a tensor against numpy's reshape."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.grid import Box, Grid
from reshard.geometry.view import View


@st.composite
def views(draw: st.DrawFn) -> View:
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    return View(tuple(draw(st.lists(sizes, min_size=1, max_size=3))))


def box_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    return Box(start, stop)


def numbered(view: View) -> tuple[np.ndarray, np.ndarray]:
    """A tensor whose elements all differ, and its view."""
    tensor = np.arange(math.prod(view.tensor_shape)).reshape(view.tensor_shape)
    return tensor, tensor.reshape(view.shape)


@given(views(), st.data())
def test_a_box_of_the_tensor_is_its_parts(view: View, data: st.DataObject) -> None:
    tensor, viewed = numbered(view)
    box = box_in(data.draw, view.tensor_shape)
    parts = list(view.parts(box))
    for place, part in parts:
        assert np.array_equal(tensor[place.slices].ravel(), viewed[part.slices].ravel())
    found = [viewed[part.slices].ravel() for _, part in parts]
    assert sorted(np.concatenate(found)) == sorted(tensor[box.slices].ravel())


@given(views(), st.data())
def test_a_box_of_the_view_is_its_places(view: View, data: st.DataObject) -> None:
    tensor, viewed = numbered(view)
    box = box_in(data.draw, view.shape)
    places = list(view.places(box))
    for place, part in places:
        assert np.array_equal(tensor[place.slices].ravel(), viewed[part.slices].ravel())
        assert view.around(box).contains(place)
    found = [tensor[place.slices].ravel() for place, _ in places]
    assert sorted(np.concatenate(found)) == sorted(viewed[box.slices].ravel())


@given(views(), st.data())
def test_parts_of_a_grid_are_boxes_of_the_tensor(view: View, data: st.DataObject) -> None:
    chunk = tuple(data.draw(st.integers(1, n)) for n in view.tensor_shape)
    grid = Grid.regular(view.tensor_shape, chunk)
    for box in view.grid(grid).boxes():
        ((place, _),) = view.places(box)
        ends = zip(grid.cuts, place.start, place.stop, strict=True)
        assert all(start in cuts and stop in cuts for cuts, start, stop in ends)


def test_sizes_that_make_no_view_are_refused() -> None:
    with pytest.raises(
        LayoutError,
        match=r"^the sizes \[\[4, 2\]\] split a tensor of shape \[8\], not one of \[9\]$",
    ):
        View.of((9,), (4, 2))
    with pytest.raises(LayoutError, match=r"^a view needs at least one size for each dimension"):
        View(((),))


@given(views(), st.data())
def test_what_boxes_of_the_view_touch_of_chunks(view: View, data: st.DataObject) -> None:
    """Chunks that lie between the rows of a box are not touched."""
    chunk = tuple(data.draw(st.integers(1, n)) for n in view.tensor_shape)
    chunks = Grid.regular(view.tensor_shape, chunk)
    whole = box_in(data.draw, view.shape)
    parts = tuple(data.draw(st.integers(1, n)) for n in whole.shape)
    units = Grid.regular(whole.shape, parts)
    boxes = [box.shift(whole.start) for box in units.boxes()]
    tensor, viewed = numbered(view)
    counts = []
    for box in boxes:
        wanted = set(viewed[box.slices].ravel())
        met = [c for c in chunks.boxes() if wanted & set(tensor[c.slices].ravel())]
        assert met == [c for c in chunks.boxes() if view.meets(c, [box])]
        counts.append(len(met))
    padded = sum(counts) * math.prod(chunk)
    assert view.touched(units, whole.start, chunks, chunk) == (padded, max(counts))
    assert view.touched(units, whole.start, chunks, None) == (whole.size, max(counts))
