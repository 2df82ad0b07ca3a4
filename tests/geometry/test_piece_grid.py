"""The grid in which loose boxes are read: it splits no box until parts are too large to be shared."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.geometry.piece_grid import split_large, unsplit_grid, with_parts_joined
from reshard.geometry.row_major import span
from tests.geometry.tilings import tilings

Tiling = tuple[tuple[int, ...], list[Box]]


@given(tilings())
def test_the_grid_has_every_cut_that_splits_no_box_and_no_other(tiling: Tiling) -> None:
    shape, boxes = tiling
    for dim, cuts in enumerate(unsplit_grid(shape, boxes).cuts):
        whole = {c for c in range(shape[dim] + 1) if not _splits(boxes, dim, c)}
        # A cut in the middle of nothing would be whole too; there is a box at every element.
        assert set(cuts) == whole


def _splits(boxes: list[Box], dim: int, cut: int) -> bool:
    return any(box.start[dim] < cut < box.stop[dim] for box in boxes)


def test_boxes_of_a_grid_are_its_parts() -> None:
    grid = Grid((6, 8, 3), ((0, 1, 6), (0, 2, 5, 8), (0, 3)))
    boxes = [*grid.boxes(), Box((0, 0, 0), (0, 8, 3)), Box((6, 4, 0), (6, 4, 0))]
    assert unsplit_grid(grid.shape, boxes[::-1]) == grid


def test_slices_of_tensorflow_keep_the_cut_that_all_of_them_respect() -> None:
    boxes = [Box((0, 0, 0), (2, 40, 50)), Box((2, 0, 0), (3, 5, 50)), Box((2, 5, 0), (3, 40, 50))]
    assert unsplit_grid((3, 40, 50), boxes).cuts == ((0, 2, 3), (0, 40), (0, 50))


def test_a_tensor_without_elements_or_axes_is_one_part() -> None:
    assert unsplit_grid((0, 4), [Box((0, 0), (0, 4))]) == Grid.whole((0, 4))
    assert unsplit_grid((), [Box((), ())]) == Grid.whole(())


@given(tilings(), st.integers(1, 400))
def test_joined_parts_have_cuts_of_the_grid_and_are_about_as_large_as_wanted(
    tiling: Tiling, least: int
) -> None:
    grid = unsplit_grid(*tiling)
    found = with_parts_joined(grid, least)
    assert found.common(grid) == found
    for dim, (few, many) in enumerate(zip(found.largest, grid.largest, strict=True)):
        others = math.prod(found.largest[dim + 1 :]) * math.prod(grid.largest[:dim])
        assert few < max(many + 1, least // others + many)


def test_rows_are_joined_where_a_mesh_would_cut_them() -> None:
    rows = Grid.regular((96_000, 4), (1, 4))
    found = with_parts_joined(rows, 1000)
    assert found.parts == (6 << 6, 1)
    for devices in (2, 3, 8, 12, 48):
        shards = Grid.regular(rows.shape, (96_000 // devices, 4))
        assert found.refine(shards) == found


@given(tilings(longest=12), st.integers(1, 60), st.data())
def test_large_parts_are_split_into_contiguous_ranges_of_boxes(
    tiling: Tiling, most: int, data: st.DataObject
) -> None:
    shape, boxes = tiling
    order = data.draw(st.permutations(range(len(shape))))
    grid = unsplit_grid(shape, boxes)
    found = split_large(grid, most, order)
    assert found.refine(grid) == found
    assert math.prod(found.largest) <= most
    for box, part in itertools.product(boxes, found.boxes()):
        inside = box.intersect(part)
        if inside is not None:
            local = inside.relative_to(box.start).permute(order)
            assert span(local, box.permute(order).shape)[1] == inside.size


def test_parts_are_split_evenly_and_into_a_bounded_number() -> None:
    assert split_large(Grid.whole((10, 4)), 20, (0, 1)).cuts == ((0, 5, 10), (0, 4))
    assert split_large(Grid.whole((12, 4)), 16, (0, 1)).cuts == ((0, 2, 4, 6, 8, 10, 12), (0, 4))
    assert split_large(Grid.whole((10, 4)), 3, (0, 1)).cuts == (tuple(range(11)), (0, 2, 4))
    assert split_large(Grid((9,), ((0, 1, 9),)), 3, (0,)).cuts == ((0, 1, 3, 4, 6, 7, 9),)
    # A file with holes may claim a petabyte.
    assert split_large(Grid.whole((1 << 40, 1 << 10)), 1 << 20, (0, 1)).count <= 3 << 16


def test_100_000_boxes_take_little_time() -> None:
    boxes = [Box((n, 0), (n + 1, 4)) for n in range(99_999)]
    boxes += [Box((99_999, 0), (100_000, 1)), Box((99_999, 1), (100_000, 4))]
    grid = unsplit_grid((100_000, 4), boxes)
    assert grid.parts == (100_000, 1)
    assert with_parts_joined(grid, 1 << 18).parts == (2, 1)
