"""Read groups: no two need the same chunk, and none could be smaller along one dimension."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reshard.geometry.grid import Box, Grid
from reshard.geometry.row_major import run_elements, run_offsets
from reshard.restoring.regions import Region, RegionIndex, chunk_indices, read_groups, split_group


@st.composite
def cases(draw):
    """A storage grid, and some of the boxes of another grid over the same shape."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)))
    storage = Grid.regular(shape, [draw(st.integers(1, n)) for n in shape])
    wanted = Grid.regular(shape, [draw(st.integers(1, n)) for n in shape])
    boxes = list(wanted.boxes())
    kept = draw(st.lists(st.sampled_from(boxes), unique=True, min_size=1))
    return shape, storage, [Region(box) for box in kept]


def overlapping(storage, box):
    return {i for i in storage.indices() if storage.box(i).intersect(box) is not None}


@given(cases())
def test_no_chunk_is_needed_by_two_groups(case):
    _, storage, regions = case
    found = read_groups(regions, storage)
    assert sorted(n for u in found for n in u) == list(range(len(regions)))
    needed = [set(chunk_indices(regions, group, storage)) for group in found]
    assert all(not (a & b) for a, b in itertools.combinations(needed, 2))
    for group, chunks in zip(found, needed, strict=True):
        assert chunks == set().union(*(overlapping(storage, regions[n].box) for n in group))


@given(cases())
def test_the_index_finds_what_a_scan_finds(case):
    shape, storage, regions = case
    group = tuple(range(len(regions)))
    index = RegionIndex(regions, group, shape)
    for box in storage.boxes():
        assert index.touching(box) == [n for n in group if regions[n].box.intersect(box)]


def test_rows_of_different_chunks_are_different_groups_also_across_a_gap():
    storage = Grid.regular((12,), (3,))
    regions = [Region(Box((0,), (3,))), Region(Box((3,), (6,))), Region(Box((9,), (12,)))]
    assert read_groups(regions, storage) == [(0,), (1,), (2,)]
    regions = [Region(Box((0,), (2,))), Region(Box((4,), (6,)))]  # the edge at 3 lies in the gap
    assert read_groups(regions, storage) == [(0,), (1,)]


def test_empty_regions_are_groups_of_their_own_without_chunks():
    storage = Grid.regular((4,), (2,))
    regions = [Region(Box((0,), (4,))), Region(Box((4,), (4,)))]
    found = read_groups(regions, storage)
    assert found == [(0,), (1,)]
    assert chunk_indices(regions, found[1], storage) == []


def test_rows_of_a_mod_table_are_one_group():
    storage = Grid.regular((9, 2), (3, 2))
    regions = [Region.rows((9, 2), 0, range(s, 9, 4)) for s in range(4)]
    assert read_groups(regions, storage) == [(0, 1, 2, 3)]


def test_parts_of_a_group_stay_within_the_bytes_and_are_never_empty():
    group = (0, 1, 2, 3)
    assert list(split_group(group, [4, 4, 4, 9], 8)) == [(0, 1), (2,), (3,)]
    assert list(split_group(group, [0, 0, 0, 0], 0)) == [(0, 1, 2, 3)]


@given(cases())
def test_runs_are_those_of_a_row_major_array(case):
    shape, storage, _ = case
    positions = {e: n for n, e in enumerate(itertools.product(*map(range, shape)))}
    for box in storage.boxes():
        run = run_elements(box.shape, shape)
        inside = [p for e, p in positions.items() if Box(e, tuple(i + 1 for i in e)).intersect(box)]
        expected = [o + i for o in run_offsets(box, shape) for i in range(run)]
        assert expected == sorted(inside)


def test_the_run_of_a_scalar_is_its_element():
    assert run_elements((), ()) == 1
    assert list(run_offsets(Box((), ()), ())) == [0]
