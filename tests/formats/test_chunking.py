"""Target chunks: shards, merged when tiny, subdivided when huge, always aligned with the shards."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from reshard.formats.chunking import chunk_shape
from reshard.geometry.grid import Grid


@st.composite
def even_splits(draw):
    parts = draw(st.lists(st.integers(1, 8), max_size=3))
    sizes = [p * draw(st.integers(1, 50)) for p in parts]
    return Grid.regular(sizes, [n // p for n, p in zip(sizes, parts, strict=True)])


@given(even_splits(), st.sampled_from([1, 2, 4]), st.integers(1, 4000), st.integers(1, 40_000))
def test_chunks_align_with_shards(slices, itemsize, merge_below, split_above):
    chunk = chunk_shape(slices, itemsize, merge_below, split_above)
    for size, part, piece in zip(slices.shape, slices.largest, chunk, strict=True):
        assert 1 <= piece <= size
        assert part == size or piece % part == 0 or part % piece == 0


@given(st.lists(st.integers(0, 6), max_size=3), st.integers(0, 3), st.integers(64, 40_000))
def test_a_chunk_with_enough_divisors_respects_the_limit(logs, split_log, split_above):
    shape = [2**n for n in logs]
    slices = Grid.regular(shape, [max(1, n >> split_log) for n in shape])
    chunk = chunk_shape(slices, 4, split_above // 2, split_above)
    assert math.prod(chunk) * 4 <= split_above


def test_a_shard_is_a_chunk():
    assert chunk_shape(Grid.regular((4096, 4096), (4096, 512)), 4) == (4096, 512)


def test_tiny_shards_are_merged_along_the_last_split_dimension():
    assert chunk_shape(Grid.regular((64, 64), (8, 8)), 4) == (64, 64)


def test_huge_shards_are_subdivided_along_the_first_dimension():
    assert chunk_shape(Grid.whole((65536, 2048)), 4) == (32768, 2048)


def test_an_unsplit_prime_dimension_is_cut_with_a_clipped_edge():
    assert chunk_shape(Grid.whole((262147, 1024)), 4) == (52430, 1024)


def test_a_scalar_is_one_chunk():
    assert chunk_shape(Grid.whole(()), 4) == ()


def test_an_empty_tensor_keeps_a_chunk_of_one_along_its_empty_dimension():
    assert chunk_shape(Grid.whole((0, 4, 100)), 8, split_above=200) == (1, 1, 25)


def test_uneven_slices_take_the_largest_part():
    assert chunk_shape(Grid((10, 1 << 20), ((0, 4, 7, 10), (0, 1 << 20))), 4) == (4, 1 << 20)
