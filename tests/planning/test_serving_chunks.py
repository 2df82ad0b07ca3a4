"""Chunks that serve several grids at once, against the definition: every box is whole chunks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import PlanError
from reshard.formats.chunking import TINY_BYTES, serving_chunk
from reshard.geometry.grid import Grid
from reshard.layout.partitioners import div_cuts


@st.composite
def grids(draw):
    shape = draw(st.lists(st.integers(1, 60), max_size=3))
    count = draw(st.integers(1, 3))
    return [
        Grid(tuple(shape), tuple(div_cuts(n, draw(st.integers(1, n))) for n in shape))
        for _ in range(count)
    ]


@given(grids(), st.integers(1, 400))
def test_every_box_is_a_union_of_whole_chunks(found, split_above):
    chunk = serving_chunk(found, 1, tiny=1, split_above=split_above)
    storage = Grid.regular(found[0].shape, chunk)
    for grid in found:
        assert grid.refine(storage) == storage


@given(grids())
def test_no_larger_chunk_does(found):
    chunk = serving_chunk(found, 1, tiny=1)
    for dim, (size, step) in enumerate(zip(found[0].shape, chunk, strict=True)):
        for larger in range(step + 1, size + 1):
            inner = [c for grid in found for c in grid.cuts[dim][1:-1]]
            assert any(c % larger for c in inner)


def test_small_shards_are_merged_up_to_the_smallest_useful_chunk():
    shape = (1 << 16,)
    found = [Grid.regular(shape, (1 << 10,)), Grid.regular(shape, (1 << 11,))]
    assert math.prod(serving_chunk(found, 4)) * 4 == TINY_BYTES
    assert serving_chunk(found, 4, merge_below=0) == (1 << 10,)


def test_large_shards_whose_cuts_do_not_meet_are_refused():
    shape = (1 << 20, 16)
    found = [Grid(shape, (div_cuts(1 << 20, n), (0, 16))) for n in (3, 8)]
    with pytest.raises(PlanError) as caught:
        serving_chunk(found, 4, "table")
    assert str(caught.value) == (
        "'table' of shape [1048576, 16]: no chunks of at least 64.0 KiB serve every layout of chunks_for: cut "
        "into [3, 1] and [8, 1] parts, only chunks of shape [1, 16] (64 B) do; leave out one of these "
        "layouts, or choose part counts that divide one another"
    )
