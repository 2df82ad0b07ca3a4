from __future__ import annotations

import pytest

from reshard.errors import LayoutError
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import (
    LayoutFile,
    PartitionRule,
    Rule,
    RuleOverlap,
    layout_for,
    overlaps,
    unmatched_rules,
)
from reshard.layout.layout_text import parse_yaml
from reshard.layout.read_layout import parse_layout
from reshard.layout.tensor_layout import TensorLayout

MESH = DeviceMesh((4, 2), ("data", "model"))
TEXT = """\
mesh: {axes: [data, model], shape: [4, 2]}
rules:
  - {match: "embed", axes: [[data, model], null]}
  - {match: ".*/kernel", axes: [null, model]}
  - {match: "replicated", axes: [null]}
  - {match: "embed/kernel", axes: [model]}
  - {match: "nothing", axes: [model]}
partitions:
  - {match: "table/.*", fixed_shards: 6}
  - {match: "vocab", max_size: 64, axis: -1}
  - {match: "nowhere", fixed_shards: 2}
"""


def load(text: str) -> LayoutFile:
    document = parse_yaml(text, "l.yaml")
    return parse_layout(document.data, document.where, document.lines)


FILE = load(TEXT)


def test_first_match_wins() -> None:
    found = layout_for(FILE, "params/embed/kernel", (16, 6), "float32")
    assert found.layout == TensorLayout((("data", "model"), None), MESH)
    assert found.slices == Grid.regular((16, 6), (2, 6))
    assert (found.rule_index, found.partition_index, found.partition) == (0, None, None)


def test_axes_are_padded_on_the_right() -> None:
    found = layout_for(FILE, "a/kernel", (3, 4, 5), "float32")
    assert found.layout.axes == (None, "model", None)
    assert found.slices.parts == (1, 2, 1)


def test_unmatched_is_replicated() -> None:
    found = layout_for(FILE, "bias", (3, 4), "float32")
    assert found.layout == TensorLayout((None, None), MESH)
    assert found.slices == Grid.whole((3, 4))
    assert (found.rule_index, found.partition_index) == (None, None)


def test_unmatched_error() -> None:
    with pytest.raises(
        LayoutError,
        match=r"'bias' of shape \[3\] matches no rule of l.yaml, which has 'unmatched: error'; add a "
        "rule for it or write 'unmatched: replicate'",
    ):
        layout_for(load("unmatched: error\nselect: [a]"), "bias", (3,), "float32")


def test_partition_comes_before_rules() -> None:
    found = layout_for(FILE, "table/kernel", (13, 4), "float32")
    assert found.slices.cuts == ((0, 3, 5, 7, 9, 11, 13), (0, 4))
    assert found.layout == TensorLayout((None, None), MESH)
    assert found.partition == {
        "strategy": "fixed_shards",
        "fixed_shards": 6,
        "axis": 0,
        "shards": 6,
    }
    assert (found.rule_index, found.partition_index) == (None, 0)


def test_partition_by_size_counts_the_dtype() -> None:
    assert layout_for(FILE, "vocab", (4, 16), "float32").slices.parts == (1, 4)
    assert layout_for(FILE, "vocab", (4, 16), "bfloat16").slices.parts == (1, 2)
    assert layout_for(FILE, "vocab", (4, 16), "float32").partition == {
        "strategy": "max_size", "max_size": 64, "axis": 1, "shards": 4,
    }  # fmt: skip


def test_empty_tensors_are_whole() -> None:
    assert layout_for(FILE, "vocab", (4, 0), "float32").slices == Grid.whole((4, 0))
    assert layout_for(FILE, "table/a", (0, 4), "float32").slices == Grid.whole((0, 4))
    assert layout_for(FILE, "a/kernel", (0, 4), "float32").slices.count == 0


def test_scalars() -> None:
    found = layout_for(FILE, "replicated", (), "int32")
    assert (found.layout.axes, found.slices, found.rule_index) == ((), Grid.whole(()), 2)
    for name, rule in (("a/kernel", 1), ("table/step", None)):
        found = layout_for(FILE, name, (), "float32")
        assert (found.layout.axes, found.slices, found.rule_index) == ((), Grid.whole(()), rule)
        assert found.partition is None


def test_more_axes_than_dimensions() -> None:
    with pytest.raises(
        LayoutError, match=r"'a/kernel' of shape \[4\]: rules\[1\] .*\(l.yaml:4\) has more axes"
    ):
        layout_for(FILE, "a/kernel", (4,), "float32")


def test_partition_axis_out_of_range() -> None:
    file = LayoutFile(partitions=(PartitionRule("t", "fixed_shards", 2, axis=2),))
    with pytest.raises(
        LayoutError, match=r"'t' of shape \[4, 4\]: rule 't' splits axis 2, which it does not have"
    ):
        layout_for(file, "t", (4, 4), "float32")


def test_indivisible_names_the_rule() -> None:
    with pytest.raises(
        LayoutError,
        match=r"'a/kernel' of shape \[3, 5\]: dimension 1 of size 5 does not divide into 2 parts "
        r"\(mesh axis 'model' of size 2\); .*; see rules\[1\] '.*/kernel' \(l.yaml:4\)",
    ):
        layout_for(FILE, "a/kernel", (3, 5), "float32")


def test_a_rule_needs_a_mesh_only_to_split() -> None:
    file = load("rules: [{match: a, axes: [x]}, {match: b, axes: [null]}]")
    assert layout_for(file, "b", (3,), "float32").layout == TensorLayout((None,))
    with pytest.raises(
        LayoutError,
        match=r"'a': rules\[0\] 'a' \(l.yaml:1\) splits it by mesh axes \[x\], but there is no mesh; "
        r"add 'mesh: \{axes: \[...\], shape: \[...\]\}' to l.yaml or name one \(mesh\)",
    ):
        layout_for(file, "a", (4,), "float32")


NAMES = ["embed/kernel", "x/kernel", "embed/table/a", "vocab", "replicated"]


def test_rules_that_match_nothing() -> None:
    assert [rule.label for rule in unmatched_rules(FILE, NAMES)] == [
        "partitions[2] 'nowhere' (l.yaml:11)",
        "rules[4] 'nothing' (l.yaml:7)",
    ]
    assert unmatched_rules(FILE, [*NAMES, "nothing/nowhere", "more"]) == []


def test_overlaps_name_the_winner_first() -> None:
    rules = [rule.label for rule in FILE.rules]
    assert overlaps(FILE, [*NAMES, "y/embed/kernel"]) == [
        RuleOverlap(rules[0], rules[1], ("embed/kernel", "y/embed/kernel")),
        RuleOverlap(rules[0], rules[3], ("embed/kernel", "y/embed/kernel")),
        RuleOverlap(FILE.partitions[0].label, rules[0], ("embed/table/a",)),
    ]
    assert overlaps(LayoutFile(rules=(Rule("a", ()), Rule("b", ()))), ["ab"]) == [
        RuleOverlap("rule 'a'", "rule 'b'", ("ab",))
    ]
