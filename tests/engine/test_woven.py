"""Pieces taken from lanes as they are, against the same pieces of the lanes laid side by side."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.woven import Woven


@st.composite
def pieces(draw: st.DrawFn) -> tuple[np.ndarray, int, tuple[slice, ...]]:
    """Lanes, the dimension along which they lie, and where a piece is in all of them together."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    lanes, dim = draw(st.integers(1, 5)), draw(st.integers(0, len(shape) - 1))
    joint = [n * lanes if d == dim else n for d, n in enumerate(shape)]
    ends = (draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)) for n in joint)
    where = tuple(slice(*sorted(e)) for e in ends)
    values = np.arange(np.prod(joint)).reshape(lanes, *shape)
    return values, dim, where


@given(pieces())
def test_a_piece_is_what_it_would_be_side_by_side(case):
    lanes, dim, where = case
    expected = np.concatenate(list(lanes), axis=dim)[where]
    woven = Woven(lanes, dim)
    assert woven.nbytes == lanes.nbytes
    out = np.full(expected.shape, -1)
    woven.copy(where, out)
    np.testing.assert_array_equal(out, expected)
    turned = np.full(expected.T.shape, -1)
    woven.copy(where, turned.T)
    np.testing.assert_array_equal(turned.T, expected)


@given(pieces())
def test_a_piece_of_one_lane_is_not_copied(case):
    lanes, dim, where = case
    along, width = where[dim], lanes.shape[1 + dim]
    found = Woven(lanes, dim).view(where)
    if along.start // width == (along.stop - 1) // width:
        np.testing.assert_array_equal(found, np.concatenate(list(lanes), axis=dim)[where])
        assert np.shares_memory(found, lanes)
    else:
        assert found is None
