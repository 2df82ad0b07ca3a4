"""Hypothesis strategies for shapes, grids and planner wanted pieces."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece
from reshard.planning.plans import Side

DTYPES = ("float32", "bfloat16", "int8", "complex128")


@st.composite
def chunked(draw: st.DrawFn, max_rank: int = 3, max_size: int = 12):
    """A shape and two chunk shapes for it."""
    shape = tuple(draw(st.lists(st.integers(1, max_size), max_size=max_rank)))
    chunk = st.tuples(*(st.integers(1, n) for n in shape))
    return shape, draw(chunk), draw(chunk)


@st.composite
def wanted_pieces(draw: st.DrawFn, max_rank: int = 3, max_size: int = 12):
    """A wanted piece with any pair of chunk grids, raw or compressed on either side."""
    shape, source_chunk, target_chunk = draw(chunked(max_rank, max_size))
    dtype, target_dtype = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    source = TensorSpec("a/b", shape, dtype, Grid.regular(shape, source_chunk), source_chunk)
    target = TensorSpec("c", shape, target_dtype, Grid.regular(shape, target_chunk), target_chunk)
    raw_source, raw_target = draw(st.booleans()), draw(st.booleans())
    return WantedPiece(
        Piece.whole(source, target),
        Side(source, "raw" if raw_source else "zstd:1", raw_source, 0 if raw_source else 1 << 20),
        Side(target, "raw" if raw_target else "zstd:1", raw_target, 0 if raw_target else 1 << 16),
    )


def boxes(grid: Grid) -> list:
    return [grid.box(i) for i in grid.indices()]


def pairs(cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(cuts))
