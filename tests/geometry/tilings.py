"""Random tilings of a tensor by boxes that rarely form a grid."""

from __future__ import annotations

from hypothesis import strategies as st

from reshard.geometry.grid import Box


def split(draw: st.DrawFn, box: Box, depth: int) -> list[Box]:
    """A tiling by halving at random places, each half on its own: rarely a grid."""
    dims = [d for d, n in enumerate(box.shape) if n > 1]
    if not depth or not dims or draw(st.integers(0, 3)) == 0:
        return [box]
    dim = draw(st.sampled_from(dims))
    cut = draw(st.integers(box.start[dim] + 1, box.stop[dim] - 1))
    low = Box(box.start, (*box.stop[:dim], cut, *box.stop[dim + 1 :]))
    high = Box((*box.start[:dim], cut, *box.start[dim + 1 :]), box.stop)
    return split(draw, low, depth - 1) + split(draw, high, depth - 1)


@st.composite
def tilings(draw: st.DrawFn, longest: int = 7, depth: int = 4) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and boxes in any order."""
    shape = tuple(draw(st.lists(st.integers(1, longest), min_size=1, max_size=3)))
    return shape, draw(st.permutations(split(draw, Box.full(shape), depth)))
