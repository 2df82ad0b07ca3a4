from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.grid import Box, Grid
from reshard.geometry.tiling import check_tiling
from tests.geometry.tilings import tilings


@st.composite
def any_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape, boxes = draw(tilings())
    edges = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    extra = Box(tuple(a for a, _ in edges), tuple(b for _, b in edges))
    dropped = boxes[draw(st.integers(0, 2)) :]
    return shape, draw(st.sampled_from([dropped, [*boxes, extra], [*dropped, extra], boxes]))


def holders(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    count = np.zeros(shape, int)
    for box in boxes:
        count[box.slices] += 1
    return count


@given(tilings())
def test_tilings_are_accepted(tiling: tuple[tuple[int, ...], list[Box]]) -> None:
    check_tiling("w", *tiling)


@given(any_boxes())
def test_accepted_exactly_where_each_element_is_held_once(
    case: tuple[tuple[int, ...], list[Box]],
) -> None:
    shape, boxes = case
    if (holders(shape, boxes) == 1).all():
        check_tiling("w", shape, boxes)
    else:
        with pytest.raises(LayoutError, match=r"'w' of shape .*(overlap|no piece holds)"):
            check_tiling("w", shape, boxes)


def test_a_pinwheel_that_no_straight_cut_divides() -> None:
    wheel = [
        ((0, 0), (1, 2)),
        ((0, 2), (2, 3)),
        ((2, 1), (3, 3)),
        ((1, 0), (3, 1)),
        ((1, 1), (2, 2)),
    ]
    boxes = [Box(*b) for b in wheel]
    check_tiling("w", (3, 3), boxes)
    with pytest.raises(LayoutError, match=r"no piece holds \[1:2, 1:2\]"):
        check_tiling("w", (3, 3), boxes[:-1])


def test_overlap_names_both_pieces_and_the_tensor() -> None:
    boxes = [Box((0, 0), (2, 4)), Box((1, 0), (4, 4))]
    with pytest.raises(
        LayoutError,
        match=r"'emb' of shape \[4, 4\]: pieces \[0:2, 0:4\] and \[1:4, 0:4\] overlap; "
        r"expected each element in exactly one piece",
    ):
        check_tiling("emb", (4, 4), boxes)


def test_overlap_and_gap_of_the_same_size_do_not_cancel() -> None:
    boxes = [Box((0,), (4,)), Box((2,), (6,))]
    with pytest.raises(
        LayoutError, match=r"pieces \[0:4\] and \[2:6\] overlap|no piece holds \[6:8\]"
    ):
        check_tiling("w", (8,), boxes)
    with pytest.raises(LayoutError, match="overlap"):
        check_tiling("w", (2, 2), [Box((0, 0), (2, 1))] * 2)


def test_a_fault_below_halves_that_hold_the_right_number() -> None:
    twice = Box((0, 0), (2, 2))
    with pytest.raises(
        LayoutError, match=r"pieces \[0:2, 0:2\] and \[0:2, 0:2\] overlap|no piece holds"
    ):
        check_tiling("w", (4, 4), [twice, twice, Box((2, 0), (4, 4))])


def test_a_grid_with_one_box_twice_and_one_missing() -> None:
    cells = list(Grid.regular((2, 2), (1, 1)).boxes())
    with pytest.raises(LayoutError, match=r"overlap|no piece holds"):
        check_tiling("w", (2, 2), [*cells[:3], cells[1]])


def test_gap_names_the_region() -> None:
    with pytest.raises(LayoutError, match=r"no piece holds \[0:2, 2:4\]"):
        check_tiling("w", (2, 4), [Box((0, 0), (2, 2))])
    with pytest.raises(LayoutError, match=r"no piece holds \[0:2, 0:4\]"):
        check_tiling("w", (2, 4), [])


@pytest.mark.parametrize(
    "box", [Box((0,), (9,)), Box((-1,), (3,)), Box((5,), (3,)), Box((9,), (9,))]
)
def test_out_of_bounds(box: Box) -> None:
    with pytest.raises(LayoutError, match=r"'w' of shape \[8\]: piece \[.*\] is out of bounds"):
        check_tiling("w", (8,), [Box((0,), (8,)), box])


@pytest.mark.parametrize("box", [Box((0,), (8,)), Box((0, 0), (8,)), Box((), ())])
def test_rank_that_differs(box: Box) -> None:
    with pytest.raises(LayoutError, match="needs a start and a stop for each of its 2 dimensions"):
        check_tiling("w", (8, 8), [box])


def test_scalars_and_empty_tensors() -> None:
    check_tiling("s", (), [Box((), ())])
    check_tiling("e", (0, 4), [])
    check_tiling("e", (0, 4), [Box((0, 0), (0, 2)), Box((0, 2), (0, 4))])
    check_tiling("w", (4,), [Box((0,), (4,)), Box((2,), (2,))])
    with pytest.raises(LayoutError, match=r"pieces \[\] and \[\] overlap"):
        check_tiling("s", (), [Box((), ())] * 2)
    with pytest.raises(LayoutError, match=r"no piece holds \[\]"):
        check_tiling("s", (), [])


def test_many_pieces_are_checked_without_comparing_pairs() -> None:
    """10,000 pieces in no grid; 50,000,000 comparisons of pairs would take half a minute."""
    random = np.random.default_rng(0)
    inner = [sorted({*random.integers(1, 10**6, 99).tolist()}) for _ in range(100)]
    rows = [Grid((10**6,), ((0, *cuts, 10**6),)) for cuts in inner]
    boxes = [
        Box((r, b.start[0]), (r + 1, b.stop[0]))
        for r, grid in enumerate(rows)
        for b in grid.boxes()
    ]
    random.shuffle(boxes)
    began = time.process_time()
    check_tiling("w", (100, 10**6), boxes)
    with pytest.raises(LayoutError, match="no piece holds"):
        check_tiling("w", (100, 10**6), boxes[1:])
    with pytest.raises(LayoutError, match="overlap"):
        check_tiling("w", (100, 10**6), [*boxes, boxes[7]])
    assert time.process_time() - began < 8


def test_absurd_sizes_cost_nothing() -> None:
    check_tiling("w", (1 << 62,), [Box((0,), (1 << 61,)), Box((1 << 61,), (1 << 62,))])
