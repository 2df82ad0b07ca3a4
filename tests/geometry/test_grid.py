from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.grid import MAX_PARTS, Box, Grid

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


def cut(draw: st.DrawFn, shape: tuple[int, ...]) -> Grid:
    inner = [
        draw(st.sets(st.integers(1, max(1, n - 1)), max_size=3)) if n > 1 else () for n in shape
    ]
    return Grid(shape, tuple(tuple(sorted({0, n, *i})) for n, i in zip(shape, inner, strict=True)))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    return cut(draw, draw(shapes))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Grid, Grid]:
    shape = draw(shapes)
    return cut(draw, shape), cut(draw, shape)


@st.composite
def grid_and_box(draw: st.DrawFn) -> tuple[Grid, Box]:
    grid = draw(grids())
    edges = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in grid.shape]
    return grid, Box(tuple(a for a, _ in edges), tuple(b for _, b in edges))


def labels(grid: Grid) -> np.ndarray:
    """The number of the box that holds each element: the model that all else is held against."""
    assert Grid(grid.shape, grid.cuts) == grid, "its cuts do not rise"
    array = np.full(grid.shape, -1)
    for number, box in enumerate(grid.boxes()):
        assert (array[box.slices] == -1).all(), "two boxes hold one element"
        array[box.slices] = number
    assert (array >= 0).all(), "an element is in no box"
    return array


@given(grids())
def test_boxes_tile_the_tensor(grid: Grid) -> None:
    seen = labels(grid)
    assert grid.count == len(list(grid.indices())) == len(np.unique(seen))
    assert [grid.box(i) for i in grid.indices()] == list(grid.boxes())


@given(pairs())
def test_refined_boxes_are_the_distinct_pairs_of_labels(two: tuple[Grid, Grid]) -> None:
    a, b = two
    both = {*zip(labels(a).ravel(), labels(b).ravel(), strict=True)}
    fine = labels(a.refine(b))
    triples = {*zip(labels(a).ravel(), labels(b).ravel(), fine.ravel(), strict=True)}
    assert len(both) == a.refine(b).count == len(triples)


@given(pairs())
def test_common_boxes_are_the_smallest_aligned_blocks(two: tuple[Grid, Grid]) -> None:
    a, b = two
    blocks = a.common(b)
    for dim, cuts in enumerate(blocks.cuts):
        assert set(cuts) == set(a.cuts[dim]) & set(b.cuts[dim])
    for grid in two:
        inside = {*zip(labels(grid).ravel(), labels(blocks).ravel(), strict=True)}
        assert len(inside) == grid.count, "a box reaches over two blocks"


@given(grid_and_box())
def test_overlapping_finds_exactly_the_touched_boxes(both: tuple[Grid, Box]) -> None:
    grid, box = both
    touched = {i for i in grid.indices() if grid.box(i).intersect(box) is not None}
    assert set(itertools.product(*grid.overlapping(box))) == (touched if box.size else set())


def test_overlapping_ignores_boxes_outside() -> None:
    grid = Grid((8,), ((0, 4, 8),))
    assert grid.overlapping(Box((6,), (20,))) == (range(1, 2),)
    assert grid.overlapping(Box((-5,), (1,))) == (range(1),)
    assert grid.overlapping(Box((9,), (20,))) == (range(0),)
    assert grid.overlapping(Box((-9,), (0,))) == (range(0),)


@given(grid_and_box())
def test_clip_keeps_the_boundaries_within(both: tuple[Grid, Box]) -> None:
    grid, box = both
    inside, clipped = labels(grid)[box.slices], labels(grid.clip(box))
    assert clipped.shape == inside.shape
    same = {*zip(inside.ravel(), clipped.ravel(), strict=True)}
    assert len(same) == len(np.unique(inside)) == len(np.unique(clipped))


@given(grids(), st.randoms())
def test_permute_follows_transpose(grid: Grid, random: object) -> None:
    order = list(range(len(grid.shape)))
    random.shuffle(order)
    moved = labels(grid).transpose(order)
    pairs_of_labels = {*zip(labels(grid.permute(order)).ravel(), moved.ravel(), strict=True)}
    assert len(pairs_of_labels) == grid.count


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 25)), max_size=3))
def test_regular_boxes_are_the_chunks(dims: list[tuple[int, int]]) -> None:
    grid = Grid.regular([n for n, _ in dims], [c for _, c in dims])
    expected = [tuple(dict.fromkeys([*range(0, n, c), n])) for n, c in dims]
    assert list(grid.cuts) == expected
    assert grid.largest == tuple(min(n, c) for n, c in dims)


def test_whole_scalar_and_empty() -> None:
    assert list(Grid.whole((2, 3)).boxes()) == [Box((0, 0), (2, 3))]
    assert list(Grid.whole(()).boxes()) == [Box((), ())]
    assert (Grid.whole((0, 3)).parts, Grid.whole((0, 3)).count) == ((0, 1), 0)


@pytest.mark.parametrize("cuts", [(), (0,), (0, 5), (1, 4), (0, 2, 2, 4), (0, 3, 2, 4), (0, -1, 4)])
def test_cuts_that_do_not_rise_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(
        LayoutError, match="cuts of dimension 0 must rise from 0 to its size 4, but are"
    ):
        Grid((4,), (cuts,))


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(LayoutError, match="a dimension cannot have the size -4"):
        Grid.regular((-4,), (1,))


def test_one_tuple_of_cuts_per_dimension() -> None:
    with pytest.raises(LayoutError, match=r"needs 2 tuples of cuts, not 1"):
        Grid((4, 4), ((0, 4),))
    with pytest.raises(
        LayoutError, match=r"a chunk of shape \(2,\) has 1 dimensions, the tensor of shape"
    ):
        Grid.regular((4, 4), (2,))


def test_a_chunk_without_elements_is_refused() -> None:
    with pytest.raises(LayoutError, match="a chunk of 0 elements cannot cut a dimension of 8"):
        Grid.regular((8,), (0,))


def test_absurd_numbers_of_parts_are_refused_before_allocation() -> None:
    with pytest.raises(
        LayoutError, match=f"4611686018427387904 parts; at most {MAX_PARTS} are allowed"
    ):
        Grid.regular((1 << 62,), (1,))
    assert Grid.regular((1 << 62,), (1 << 61,)).count == 2


def test_grids_over_two_shapes_do_not_combine() -> None:
    for combine in (Grid.common, Grid.refine):
        with pytest.raises(LayoutError, match=r"over one shape, not over \(4,\) and \(8,\)"):
            combine(Grid.whole((4,)), Grid.whole((8,)))


def test_clip_outside_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"box \[2:9\] reaches outside the grid's shape \(8,\)"):
        Grid.regular((8,), (4,)).clip(Box((2,), (9,)))


def test_permute_needs_an_order() -> None:
    with pytest.raises(LayoutError, match=r"\(0, 0\) is not an order of the 2 dimensions"):
        Grid.whole((4, 4)).permute((0, 0))
