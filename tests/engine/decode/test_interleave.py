"""Pieces cut from bands of several chunks, against the same pieces of the joined bands."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.decode.source_bands import Interleaved, interleaved_of
from reshard.geometry.grid import Box


@st.composite
def pieces(draw: st.DrawFn) -> tuple[np.ndarray, int, tuple[slice, ...]]:
    """Lanes, the dimension along which they lie, and where a piece is in all of them together."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    bands, dim = draw(st.integers(1, 5)), draw(st.integers(0, len(shape) - 1))
    combined = [n * bands if d == dim else n for d, n in enumerate(shape)]
    ends = (
        draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)) for n in combined
    )
    where = tuple(slice(*sorted(e)) for e in ends)
    values = np.arange(np.prod(combined)).reshape(bands, *shape)
    return values, dim, where


@given(pieces())
def test_a_piece_is_what_it_would_be_side_by_side(case):
    bands, dim, where = case
    expected = np.concatenate(list(bands), axis=dim)[where]
    interleaved = Interleaved(bands, dim)
    assert interleaved.nbytes == bands.nbytes
    out = np.full(expected.shape, -1)
    interleaved.copy(where, out)
    np.testing.assert_array_equal(out, expected)
    turned = np.full(expected.T.shape, -1)
    interleaved.copy(where, turned.T)
    np.testing.assert_array_equal(turned.T, expected)


@given(pieces())
def test_a_piece_of_one_band_is_not_copied(case):
    bands, dim, where = case
    along, width = where[dim], bands.shape[1 + dim]
    found = Interleaved(bands, dim).view(where)
    if along.start // width == (along.stop - 1) // width:
        np.testing.assert_array_equal(found, np.concatenate(list(bands), axis=dim)[where])
        assert np.shares_memory(found, bands)
    else:
        assert found is None


def parts_in(memory: np.ndarray, starts: list[int], shape: tuple[int, ...], dim: int) -> list:
    """Views of ``memory``, which begin at these bytes, as parts that follow one another along ``dim``."""
    nbytes = int(np.prod(shape)) * 4
    found = []
    for number, start in enumerate(starts):
        at = tuple(number * n if d == dim else 0 for d, n in enumerate(shape))
        elements = memory[start : start + nbytes].view("<u4").reshape(shape)
        found.append((elements, Box.full(shape).shift(at)))
    return found


def combined_of(parts: list) -> Box:
    return Box((0,) * parts[0][1].rank, parts[-1][1].stop)


@given(st.integers(2, 5), st.integers(0, 40), st.integers(0, 1), st.booleans())
def test_bands_at_even_distances_are_one_array(bands, gap, dim, is_part):
    memory = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    starts = [64 + number * (48 + 4 * gap) for number in range(bands)]
    parts = parts_in(memory, starts, (3, 4), dim)
    if is_part:
        parts = [(e[1:], Box(b.start, (b.stop[0] - 1, b.stop[1]))) for e, b in parts]
        if dim == 0:
            parts = [(e, b.shift((-number, 0))) for number, (e, b) in enumerate(parts)]
    interleaved = interleaved_of(parts, memory, combined_of(parts))
    assert interleaved is not None
    expected = np.concatenate([elements for elements, _ in parts], axis=dim)
    out = np.empty(expected.shape, "<u4")
    interleaved.copy(tuple(slice(0, n) for n in expected.shape), out)
    np.testing.assert_array_equal(out, expected)


def test_parts_of_one_chunk_are_not_interleaved():
    memory = np.zeros(4096, np.uint8)
    uneven = parts_in(memory, [0, 48, 100], (3, 4), 1)
    backward = parts_in(memory, [96, 48, 0], (3, 4), 1)
    for parts in uneven, backward:
        assert interleaved_of(parts, memory, combined_of(parts)) is None
    wider = parts_in(memory, [0, 48], (3, 4), 1)
    wider[1] = parts_in(memory, [48], (3, 5), 1)[0]
    assert interleaved_of(wider, memory, Box((0, 0), (3, 9))) is None
    square = [
        (e, Box.full((3, 4)).shift(at))
        for (e, _), at in zip(
            parts_in(memory, [0, 48, 96, 144], (3, 4), 1),
            [(0, 0), (0, 4), (3, 0), (3, 4)],
            strict=True,
        )
    ]
    assert interleaved_of(square, memory, Box((0, 0), (6, 8))) is None
