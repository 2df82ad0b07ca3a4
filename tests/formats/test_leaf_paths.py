"""New paths for renamed leaves: what a rename leaves alone stays what it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import FormatError
from reshard.formats.base import Leaf, PathKey
from reshard.formats.leaf_paths import renamed


def leaf(*keys: str | int, item: str = "", prefix: str = "") -> Leaf:
    path = tuple(PathKey(str(k), isinstance(k, int)) for k in keys)
    return Leaf(prefix + "/".join(k.key for k in path), path, item, meta={"kept": True})


def keys(found: Leaf) -> list[str | int]:
    return [int(k.key) if k.is_sequence else k.key for k in found.path]


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (("params", "dense", "kernel"), "model/dense/kernel", ["model", "dense", "kernel"]),
        (("params", "layers", 0, "w"), "model/layers/0/w", ["model", "layers", 0, "w"]),
        (("params", "layers", 0, "w"), "params/layers/0/weight", ["params", "layers", 0, "weight"]),
        (("params", "layers", 0, "w"), "params/layers/1/w", ["params", "layers", "1", "w"]),
        (("a", "b/c", "d"), "x/b/c/d", ["x", "b/c", "d"]),
        (("a", "b/c", "d"), "a/b/c/e", ["a", "b/c", "e"]),
        (("a", "b/c", "d"), "a/b/x/d", ["a", "b", "x", "d"]),
        (("a", "b"), "a", ["a"]),
        (("a", "b"), "b", ["b"]),
        (("a",), "a/b/c", ["a", "b", "c"]),
        (("a",), "x/y/a", ["x", "y", "a"]),
        ((0, 1), "0/x/1", [0, "x", 1]),
        ((0,), "1", ["1"]),
        (("a", "a"), "a/a/a", ["a", "a", "a"]),
    ],
)
def test_paths(before, name, after):
    found = renamed(leaf(*before), name, [""])
    assert keys(found) == after
    assert found.name == name
    assert found.meta == {"kept": True}


def test_the_same_name_is_the_same_leaf():
    same = leaf("a", 0)
    assert renamed(same, "a/0", [""]) is same


def test_a_name_begins_with_its_tree_where_there_are_several():
    found = renamed(leaf("w", item="state", prefix="state/"), "state/v", ["state", "ema"])
    assert (found.item, keys(found)) == ("state", ["v"])
    moved = renamed(leaf("w", item="state", prefix="state/"), "ema/w", ["state", "ema"])
    assert (moved.item, keys(moved)) == ("ema", ["w"])


@pytest.mark.parametrize("name", ["other/w", "w", "state", "ema"])
def test_a_name_that_begins_with_no_tree(name):
    with pytest.raises(FormatError) as caught:
        renamed(leaf("w", item="state", prefix="state/"), name, ["state", "ema"])
    text = f"'state/w' would be renamed to {name!r}, but this checkpoint has several trees and a name must begin"
    assert text in str(caught.value)
    assert str(caught.value).endswith("one of them: state, ema")


KEYS = st.lists(st.one_of(st.sampled_from(["a", "b", "a/b", "0"]), st.integers(0, 1)), min_size=1, max_size=4)  # fmt: skip


@given(KEYS, st.lists(st.sampled_from(["a", "b", "0", "1", "c"]), min_size=1, max_size=5))
def test_a_path_always_joins_to_its_name(before, parts):
    name = "/".join(parts)
    found = renamed(leaf(*before), name, [""])
    assert "/".join(k.key for k in found.path) == name
    assert all(k.key for k in found.path)
