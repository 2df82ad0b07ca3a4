from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.geometry.grid import Box

SHAPE = (5, 6, 4)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...] = SHAPE) -> Box:
    edges = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in edges), tuple(b for _, b in edges))


def marked(box: Box, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    array = np.zeros(shape, bool)
    array[box.slices] = True
    return array


@given(boxes(), boxes())
def test_intersection_holds_what_both_hold(a: Box, b: Box) -> None:
    both = marked(a) & marked(b)
    shared = a.intersect(b)
    assert (shared is None) == (not both.any())
    if shared is not None:
        assert np.array_equal(marked(shared), both)


@given(boxes(), boxes())
def test_contains_means_every_element(a: Box, b: Box) -> None:
    if b.size:
        assert a.contains(b) == (not (marked(b) & ~marked(a)).any())


@given(boxes())
def test_size_and_shape_are_those_of_the_indexed_array(box: Box) -> None:
    piece = np.empty(SHAPE)[box.slices]
    assert (box.shape, box.size, box.rank) == (piece.shape, piece.size, piece.ndim)


@given(boxes(), st.permutations(range(3)))
def test_permute_follows_transpose(box: Box, order: list[int]) -> None:
    moved = tuple(SHAPE[o] for o in order)
    assert np.array_equal(marked(box.permute(order), moved), marked(box).transpose(order))


@given(boxes(), st.tuples(*[st.integers(0, 9)] * 3))
def test_relative_to_undoes_shift(box: Box, offset: tuple[int, ...]) -> None:
    assert box.shift(offset).relative_to(offset) == box
    assert box.relative_to(box.start) == Box((0, 0, 0), box.shape)


def test_scalar_and_empty_boxes() -> None:
    assert Box.full(()).size == 1
    assert Box.full((0, 3)).size == 0
    assert Box.full((0, 3)).intersect(Box.full((0, 3))) is None
    assert Box((), ()).intersect(Box((), ())) == Box((), ())


def test_boxes_of_different_rank_do_not_mix() -> None:
    with pytest.raises(ValueError, match="is longer than"):
        Box((0,), (1,)).contains(Box((0, 0), (1, 1)))


def test_text_is_as_in_indexing() -> None:
    assert str(Box((0, 2), (4, 6))) == "[0:4, 2:6]"
