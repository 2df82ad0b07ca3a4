"""New paths for renamed leaves; other leaves keep theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import reshard
from reshard.errors import FormatError, PlanError
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.leaf_paths import renamed, renamed_leaves
from reshard.restoring.target_tree import nested


def leaf(*keys: str | int, item: str = "", prefix: str = "") -> Leaf:
    path = tuple(PathKey(str(k), isinstance(k, int)) for k in keys)
    return Leaf(prefix + "/".join(k.key for k in path), path, item, meta={"kept": True})


def keys(found: Leaf) -> list[str | int | list[str]]:
    """Positions as numbers, and what stands where a position stood but is no number in a list."""
    return [_key(k) if k.is_sequence else k.key for k in found.path]


def _key(key: PathKey) -> int | list[str]:
    return int(key.key) if key.key.isascii() and key.key.isdigit() else [key.key]


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (("params", "dense", "kernel"), "model/dense/kernel", ["model", "dense", "kernel"]),
        (("params", "layers", 0, "w"), "model/layers/0/w", ["model", "layers", 0, "w"]),
        (("params", "layers", 0, "w"), "params/layers/0/weight", ["params", "layers", 0, "weight"]),
        (("params", "layers", 0, "w"), "params/layers/1/w", ["params", "layers", 1, "w"]),
        (("a", "b/c", "d"), "x/b/c/d", ["x", "b/c", "d"]),
        (("a", "b/c", "d"), "a/b/c/e", ["a", "b/c", "e"]),
        (("a", "b/c", "d"), "a/b/x/d", ["a", "b", "x", "d"]),
        (("a", "b"), "a", ["a"]),
        (("a", "b"), "b", ["b"]),
        (("a",), "a/b/c", ["a", "b", "c"]),
        (("a",), "x/y/a", ["x", "y", "a"]),
        ((0, 1), "0/x/1", [0, "x", 1]),
        ((0,), "1", [1]),
        (("layers", 9, "w"), "blocks/0/w", ["blocks", 0, "w"]),
        (
            ("layers", 9, "w"),
            "model/decoder/blocks/0/weight",
            ["model", "decoder", "blocks", 0, "weight"],
        ),
        (("layers", 9, "attn"), "attn/layers/0", ["attn", "layers", 0]),
        (("layers", 9, "w"), "layers/layer_9/w", ["layers", ["layer_9"], "w"]),
        (("layers", 9, "w"), "layers/w", ["layers", "w"]),
        (("layers", "9", "w"), "layers/0/w", ["layers", "0", "w"]),
        (("a", 0, 1, "w"), "a/1/0/w", ["a", 1, 0, "w"]),
        (("a", 0, "1", "w"), "a/1/0/w", ["a", 1, "0", "w"]),
        (("layers", 3, "w"), "layers/1/0/w", ["layers", "1", 0, "w"]),
        (("layers", 0, "w"), "layers/0/0/w", ["layers", "0", 0, "w"]),
        (("layers", 3, "w"), "x/٣/w", ["x", ["٣"], "w"]),
        (("a", "a"), "a/a/a", ["a", "a", "a"]),
    ],
)
def test_paths(before, name, after):
    found = renamed(leaf(*before), name, [])
    assert keys(found) == after
    assert found.name == name
    assert found.meta == {"kept": True}


def test_the_same_name_is_the_same_leaf():
    same = leaf("a", 0)
    assert renamed(same, "a/0", []) is same


def test_a_name_begins_with_its_tree_where_there_are_several():
    found = renamed(leaf("w", item="state", prefix="state/"), "state/v", ["state", "ema"])
    assert (found.item, keys(found)) == ("state", ["v"])
    moved = renamed(leaf("w", item="state", prefix="state/"), "ema/w", ["state", "ema"])
    assert (moved.item, keys(moved)) == ("ema", ["w"])


@pytest.mark.parametrize("name", ["other/w", "w", "state", "ema"])
def test_a_name_that_begins_with_no_tree(name):
    with pytest.raises(FormatError) as caught:
        renamed(leaf("w", item="state", prefix="state/"), name, ["state", "ema"])
    text = f"'state/w' would be renamed to {name!r}, but in this checkpoint a name begins with its item, "
    assert text + "which must be one of: state, ema; " in str(caught.value)
    assert str(caught.value).endswith("give the item's own folder as the source")


KEYS = st.lists(st.one_of(st.sampled_from(["a", "b", "a/b", "0"]), st.integers(0, 1)), min_size=1, max_size=4)  # fmt: skip


@given(KEYS, st.lists(st.sampled_from(["a", "b", "0", "1", "c"]), min_size=1, max_size=5))
def test_a_path_always_joins_to_its_name(before, parts):
    name = "/".join(parts)
    found = renamed(leaf(*before), name, [])
    assert "/".join(k.key for k in found.path) == name
    assert all(k.key for k in found.path)


def tree_of(*pairs: tuple[Leaf, str | None]) -> tuple[object, tuple[str, ...]]:
    """What the leaves become under their new names, each its old name, and the warnings."""
    names = {old.name: new for old, new in pairs if new is not None}
    found = renamed_leaves([old for old, _ in pairs], names, [])
    olds = (old.name for old, new in pairs if new is not None)
    return nested(
        (new.path, old) for new, old in zip(found.leaves, olds, strict=True)
    ), found.warnings


@pytest.mark.parametrize(
    ("pairs", "tree", "warnings"),
    [
        (
            [(leaf("a", 1), "a/0"), (leaf("a", 0), "a/1")],
            {"a": ["a/1", "a/0"]},
            [],
        ),
        (
            [(leaf("a", 0), "c/0"), (leaf("a", 1), "c/1"), (leaf("b", 0), "c/2")],
            {"c": ["a/0", "a/1", "b/0"]},
            [],
        ),
        (
            [(leaf("a", "0"), "b/0"), (leaf("a", "1"), "b/1")],
            {"b": {"0": "a/0", "1": "a/1"}},
            [],
        ),
        (
            [(leaf("a", 0, 1), "a/0/0"), (leaf("a", 2, 0), "a/1/0")],
            {"a": [["a/0/1"], ["a/2/0"]]},
            [],
        ),
        (
            [(leaf("a", 2, "w"), None), (leaf("a", 3, "w"), "a/3/w"), (leaf("a", 4, "w"), "a/4/w")],
            {"a": {"3": {"w": "a/3/w"}, "4": {"w": "a/4/w"}}},
            ["the list 'a' becomes a dict with the keys 3, 4; to stay a list, it needs the positions 0 to 1"],
        ),
        (
            [(leaf("a", 3), "b/c/1")],
            {"b": {"c": {"1": "a/3"}}},
            ["the list 'b/c' becomes a dict with the key 1; to stay a list, it needs the position 0"],
        ),
        (
            [(leaf(3), "3"), (leaf(5), "6")],
            {"3": "3", "6": "5"},
            [
                "the list that is the whole tree becomes a dict with the keys 3, 6; "
                "to stay a list, it needs the positions 0 to 1"
            ],
        ),
        (
            [(leaf("a", 0), "a/0"), (leaf("b", "1"), "a/1")],
            {"a": {"0": "a/0", "1": "b/1"}},
            ["the list 'a' becomes a dict with the keys 0, 1; '1' was no position of a list"],
        ),
        (
            [(leaf("a", 0, "w"), "a/first/w"), (leaf("a", 1, "w"), "a/second/w")],
            {"a": {"first": {"w": "a/0/w"}, "second": {"w": "a/1/w"}}},
            [
                "the list 'a' becomes a dict with the keys first, second; "
                "to stay a list, it needs the positions 0 to 1"
            ],
        ),
        (
            [(leaf("a", 0, "w"), "a/00/w"), (leaf("a", 1, "w"), "a/01/w")],
            {"a": {"00": {"w": "a/0/w"}, "01": {"w": "a/1/w"}}},
            ["the list 'a' becomes a dict with the keys 00, 01; to stay a list, it needs the positions 0 to 1"],
        ),
        ([(leaf("a", 0, "mu"), "mu")], {"mu": "a/0/mu"}, []),
        ([(leaf("a", 0), "a/0"), (leaf("b", "0"), "b/0")], {"a": ["a/0"], "b": {"0": "b/0"}}, []),
    ],
)  # fmt: skip
def test_lists_and_dicts(pairs, tree, warnings):
    assert tree_of(*pairs) == (tree, tuple(warnings))


def test_many_keys_are_not_all_shown():
    (warning,) = tree_of(*((leaf("a", i), f"a/{i + 1}") for i in range(20)))[1]
    assert "the keys 1, 2, 3, 4, 5, 6, 7, 8, …; to stay a list" in warning


def test_lists_of_several_trees_are_distinguished():
    a = leaf("w", 0, item="state", prefix="state/")
    b = leaf("w", 0, item="ema", prefix="ema/")
    names = {a.name: "state/w/0", b.name: "ema/w/1"}
    found = renamed_leaves([a, b], names, ["state", "ema"])
    assert [keys(one) for one in found.leaves] == [["w", 0], ["w", "1"]]
    assert found.warnings == (
        "the list 'ema/w' becomes a dict with the key 1; to stay a list, it needs the position 0",
    )


def test_leaves_that_are_not_renamed_are_the_same_objects():
    leaves = [leaf("a", 0), leaf("a", 1)]
    found = renamed_leaves(leaves, {one.name: one.name for one in leaves}, [])
    assert all(a is b for a, b in zip(found.leaves, leaves, strict=True))


TREES = st.recursive(
    st.just(None),
    lambda t: st.lists(t, min_size=1, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "0", "1"]), t, min_size=1, max_size=3),
    max_leaves=10,
).filter(lambda tree: tree is not None)  # fmt: skip


@given(TREES, st.data())
def test_renumbered_lists_as_a_plain_model_says(tree, data):
    """Every list drops some items and renumbers the rest; every dict keeps its digits."""
    plan = {}

    def model(node, path, new):
        if node is None:
            plan[path] = new
            return "/".join(k.key for k in path)
        steps = [PathKey(str(i), isinstance(node, list)) for i in range(len(node))]
        if isinstance(node, dict):
            steps = [PathKey(key) for key in node]
        chosen = data.draw(st.lists(st.sampled_from(steps), min_size=1, unique=True))
        kept = {}
        numbers = iter(
            data.draw(st.permutations(range(len(chosen) + data.draw(st.integers(0, 1)))))
        )
        for step in chosen:
            child = node[int(step.key)] if isinstance(node, list) else node[step.key]
            to = str(next(numbers)) if isinstance(node, list) else step.key
            kept[to] = model(child, (*path, step), (*new, to))
        if isinstance(node, list) and set(kept) == {str(i) for i in range(len(kept))}:
            return [kept[str(i)] for i in range(len(kept))]
        return kept

    expected = model(tree, (), ())
    pairs = [
        (Leaf("/".join(k.key for k in path), path, ""), "/".join(new)) for path, new in plan.items()
    ]
    assert tree_of(*pairs)[0] == expected


@pytest.mark.parametrize("to", [{"to": "orbax", "ocdbt": True}, {"to": "dcp"}, {"to": "tensorflow"}, {"to": "keras"}])  # fmt: skip
def test_a_name_that_would_not_be_read_again_is_not_written(
    to: dict[str, Any], tmp_path: Path
) -> None:
    save_file({"n" * 4097: np.zeros(1)}, tmp_path / "long.safetensors")
    with pytest.raises(PlanError) as refused:
        reshard.convert(tmp_path / "long.safetensors", tmp_path / "made.weights.h5", **to)
    assert not list(tmp_path.glob("*made*"))
    added = len("/.ATTRIBUTES/VARIABLE_VALUE") if to["to"] == "tensorflow" else 0
    assert str(refused.value) == (
        f"the name '{'n' * 76}... has {4097 + added:,} characters; at most 4,096 are written; rename it (rename)"
    )
