from itertools import groupby, pairwise

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.formats.contents import PathKey
from reshard.formats.leaf_paths import is_list, lost_lists, settle_sequences, tree_order
from reshard.restoring.target_tree import nested

TREES = st.recursive(
    st.integers(), lambda t: st.lists(t, min_size=1, max_size=4) | st.dictionaries(st.text("ab01", max_size=2), t, min_size=1, max_size=3), max_leaves=12
)  # fmt: skip


def paths_of(tree):
    return [
        tuple(
            PathKey(str(k.idx), True)
            if isinstance(k, jax.tree_util.SequenceKey)
            else PathKey(k.key)
            for k in path
        )
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


@given(TREES)
def test_whole_trees_stay_as_they_are(tree):
    assert settle_sequences(paths_of(tree)) == paths_of(tree)


@given(TREES, st.data())
def test_what_is_left_has_no_gaps_and_the_same_keys(tree, data):
    paths = [p for p in paths_of(tree) if data.draw(st.booleans())]
    settled = settle_sequences(paths)
    assert [[s.key for s in p] for p in settled] == [[s.key for s in p] for p in paths]
    children = {}
    for path in settled:
        for depth, step in enumerate(path):
            children.setdefault(path[:depth], set()).add(step)
    for steps in children.values():
        assert len({s.is_sequence for s in steps}) == 1
        if next(iter(steps)).is_sequence:
            assert {s.key for s in steps} == {str(i) for i in range(len(steps))}


@pytest.mark.parametrize(
    ("steps", "sequence"),
    [
        ([("0", True), ("1", True)], True),
        ([("1", True)], False),
        ([("0", True), ("00", True)], False),
        ([("0", True), ("1", False)], False),
        ([("0", False)], False),
        ([("x", True)], False),
    ],
)
def test_only_a_complete_run_of_positions_is_a_sequence(steps, sequence):
    paths = [(PathKey("l"), PathKey(*step)) for step in steps]
    settled = settle_sequences(paths)
    assert [path[1].is_sequence for path in settled] == [sequence] * len(steps)
    assert not settled[0][0].is_sequence
    assert is_list(path[1] for path in paths) == sequence
    was_list = any(step[1] for step in steps)
    assert list(lost_lists(paths)) == ([("l",)] if was_list and not sequence else [])


@given(TREES, st.randoms())
def test_the_trees_order_is_found_again(tree, random):
    paths = paths_of(tree)
    shuffled = random.sample(paths, len(paths))
    ordered = [shuffled[i] for i in tree_order(shuffled)]
    # Of a dict any order is one; a list's items come by position, each with its leaves together.
    assert nested((path, path) for path in ordered) == nested((path, path) for path in paths)
    for depth in range(1, max(map(len, paths))):
        prefixes = [path[:depth] for path in ordered if len(path) > depth]
        assert len(list(groupby(prefixes))) == len(set(prefixes))
    for before, after in pairwise(ordered):
        step = next((a, b) for a, b in zip(before, after, strict=False) if a != b)
        if step[0].is_sequence:
            assert int(step[0].key) < int(step[1].key)
