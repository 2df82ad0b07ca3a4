from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.dtypes import STORED_DTYPES
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile, PartitionRule, Rule, layout_to_mapping
from reshard.layout.layout_text import parse_yaml
from reshard.layout.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from reshard.layout.read_layout import load_layout, parse_layout

TEXT = """\
mesh: {axes: [data, model], shape: [4, 2]}     # a comment
rules:
  - {match: "embed", axes: [[data, model], null]}
  - {match: ".*/kernel", axes: [null, model]}
partitions:
  - {match: "table/.*", fixed_shards: 6, axis: 0}
  - {match: "vocab", max_size: 64MiB, axis: -1}
  - {match: "words", min_size: 1024, max_shards: 8}
unmatched: error
select: ["^params/"]
drop: ["/mu$", "/nu$"]
rename: [{match: "^params/(.*)", to: '\\1'}]
cast: [{match: "kernel$", dtype: bfloat16}]
"""

EXPECTED = LayoutFile(
    mesh=DeviceMesh((4, 2), ("data", "model")),
    rules=(Rule("embed", (("data", "model"), None)), Rule(".*/kernel", (None, "model"))),
    partitions=(
        PartitionRule("table/.*", "fixed_shards", 6),
        PartitionRule("vocab", "max_size", 64 << 20, axis=-1),
        PartitionRule("words", "min_size", 1024, max_shards=8),
    ),
    unmatched="error",
    changes=Changes(
        select=("^params/",),
        drop=("/mu$", "/nu$"),
        rename=(("^params/(.*)", r"\1"),),
        cast=(("kernel$", "bfloat16"),),
    ),
)


def parse(text: str) -> LayoutFile:
    document = parse_yaml(text, "l.yaml")
    return parse_layout(document.data, document.where, document.lines)


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "l.yaml").write_text(TEXT)
    (tmp_path / "l.json").write_text(json.dumps(yaml.safe_load(TEXT)))
    assert load_layout(tmp_path / "l.yaml") == load_layout(str(tmp_path / "l.json")) == EXPECTED


def test_labels_say_where_a_rule_stands() -> None:
    layout = parse(TEXT)
    assert layout.rules[1].label == "rules[1] '.*/kernel' (l.yaml:4)"
    assert layout.partitions[0].label == "partitions[0] 'table/.*' (l.yaml:6)"
    assert parse_layout(yaml.safe_load(TEXT), "body").rules[0].label == "rules[0] 'embed' (body)"


def test_partitioners() -> None:
    assert [rule.partitioner for rule in EXPECTED.partitions] == [
        FixedShardsPartitioner(6),
        MaxSizePartitioner(64 << 20),
        MinSizePartitioner(1024, 8),
    ]


def test_sections_are_optional() -> None:
    assert parse("{}") == LayoutFile()
    assert parse("select: [a]").changes == Changes(select=("a",))
    assert parse("rules: [{match: a, axes: []}]").rules == (Rule("a", ()),)
    assert parse("rules: [{match: a, axes: [x]}]").mesh is None
    mesh = parse("mesh: {axes: [a], shape: [2], axis_types: [AxisType.Explicit]}").mesh
    assert mesh == DeviceMesh((2,), ("a",), axis_types=("Explicit",))
    mesh = parse("mesh: {axes: [a], shape: [2], device_ids: [3, 1]}").mesh
    assert mesh == DeviceMesh((2,), ("a",), device_ids=(3, 1))


def test_a_mesh_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    """The order counts: it is that in which the axes are written, in YAML and in JSON."""
    one, other = DeviceMesh((4, 2), ("data", "model")), DeviceMesh((2, 4), ("model", "data"))
    assert parse("mesh: {data: 4, model: 2}").mesh == one
    assert parse("mesh:\n  model: 2\n  data: 4").mesh == other
    assert parse_layout({"mesh": {"model": 2, "data": 4}}).mesh == other
    path = tmp_path / "l.json"
    path.write_text('{"mesh": {"model": 2, "data": 4}}')
    assert load_layout(path).mesh == other
    path.write_text('{"mesh": {"model": 2, "model": 4}}')
    with pytest.raises(LayoutError, match="key 'model' appears twice in one object; keep one"):
        load_layout(path)
    assert layout_to_mapping(LayoutFile(mesh=one))["mesh"] == {
        "axes": ["data", "model"],
        "shape": [4, 2],
    }


def test_another_mesh() -> None:
    layout = parse("rules: [{match: a, axes: [x]}]")
    assert layout.with_mesh(DeviceMesh((8,), ("x",))).mesh == DeviceMesh((8,), ("x",))
    with pytest.raises(
        LayoutError, match=r"^rules\[0\] 'a' \(l.yaml:1\): .*'x' not in the mesh \(y=8\)"
    ):
        layout.with_mesh(DeviceMesh((8,), ("y",)))


regexes = st.sampled_from(["a", "^b/.*$", "c|d", "(x)y"])


@st.composite
def layouts(draw: st.DrawFn) -> LayoutFile:
    names = draw(st.permutations(["data", "model", "x"]))[: draw(st.integers(1, 3))]
    types = draw(st.none() | st.just(["Auto"] * len(names)))
    mesh = DeviceMesh([draw(st.integers(1, 9)) for _ in names], names, axis_types=types)
    if draw(st.booleans()):
        mesh = dataclasses.replace(mesh, device_ids=draw(st.permutations(range(mesh.size))))
    axes = st.permutations([None, *names]).flatmap(
        lambda axes: st.sampled_from([(), tuple(axes), (None, tuple(names))])
    )
    strategies = st.sampled_from(["fixed_shards", "min_size", "max_size"])
    partition = st.builds(
        lambda match, strategy, amount, axis, most: PartitionRule(
            match, strategy, amount, axis, None if strategy == "fixed_shards" else most
        ),
        regexes, strategies, st.integers(1, 1 << 40), st.integers(-3, 3), st.integers(1, 99),
    )  # fmt: skip
    many = {"max_size": 3}
    return LayoutFile(
        mesh=draw(st.none() | st.just(mesh)),
        rules=tuple(
            Rule(m, tuple(a[0] if isinstance(a, tuple) and len(a) == 1 else a for a in axes_))
            for m, axes_ in draw(st.lists(st.tuples(regexes, axes), **many))
        ),
        partitions=tuple(draw(st.lists(partition, **many))),
        unmatched=draw(st.sampled_from(["replicate", "error"])),
        changes=Changes(
            select=tuple(draw(st.lists(regexes, **many))),
            drop=tuple(draw(st.lists(regexes, **many))),
            rename=tuple(draw(st.lists(st.tuples(regexes, st.sampled_from(["", "n", r"\g<0>"]))))),
            cast=tuple(draw(st.lists(st.tuples(regexes, st.sampled_from(STORED_DTYPES))))),
        ),
    )


@given(layouts())
def test_every_layout_survives_the_round_trip(layout: LayoutFile) -> None:
    mapping = layout_to_mapping(layout)
    assert parse_layout(json.loads(json.dumps(mapping))) == layout
    assert parse(yaml.safe_dump(mapping)) == layout


MESH = "mesh: {axes: [data, model], shape: [4, 2]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "l.yaml: expected a mapping with the keys mesh, rules, partitions, unmatched, select, drop, rename, cast, about, sizes, map, refuse, found null"),
        ("- 1", r"l.yaml:1: expected a mapping with the keys .*, found \[1\]"),
        ("a: 1\nrulez: []", "l.yaml:1: a: unknown key 'a'; known: mesh, rules"),
        ("\nrulez: []", r"l.yaml:2: rulez: unknown key 'rulez'; did you mean 'rules'\? known: mesh, rules, partitions"),
        ("mesh: 3", "l.yaml:1: mesh: expected a mesh such as {data: 4, model: 2} or {axes: .*, found 3"),
        ("mesh: {}", r"l.yaml:1: mesh: expected a mesh such as {data: 4, model: 2} or .*, found \{\}"),
        ("mesh: {a: 2, a: 2}", "l.yaml:1: key 'a' appears twice; keep one"),
        ("mesh: {a: 2, b: [4]}", r"l.yaml:1: mesh.b: expected the size of a mesh axis, a whole number of at least 1, found \[4\]"),
        ("mesh: {a: 0}", "l.yaml:1: mesh.a: expected the size of a mesh axis, a whole number of at least 1, found 0"),
        ("mesh: {a: 9999999999}", "l.yaml:1: mesh: a mesh may have at most 64 axes and 1048576 devices"),
        ("mesh: {axis: [a], shape: [2]}", r"l.yaml:1: mesh.axis: unknown key 'axis'; did you mean 'axes'\?"),
        ("mesh: {axes: [a], shape: [2], device_ids: [1]}", "l.yaml:1: mesh: the mesh \\(a=2\\) needs 2 different device ids"),
        ("mesh: {axes: [a], shape: [2], device_ids: 1}", "mesh.device_ids: expected a list of device ids, one per device, row-major, found 1"),
        ("mesh: {axes: [a], shape: [2], device_ids: [x, 1]}", r"mesh.device_ids\[0\]: expected a device id, found 'x'"),
        ("mesh: {axes: [a]}", "l.yaml:1: mesh: the key 'shape' is missing"),
        ("mesh: {axes: a, shape: [2]}", "l.yaml:1: mesh.axes: expected a list of axis names, found 'a'"),
        ("mesh: {axes: [1], shape: [2]}", r"l.yaml:1: mesh.axes\[0\]: expected the name of a mesh axis, found 1"),
        ("mesh:\n  axes: [a]\n  shape: [true]", r"l.yaml:3: mesh.shape\[0\]: expected a whole number of at least 1, found True"),
        ("mesh: {axes: [a], shape: [0]}", r"mesh.shape\[0\]: expected a whole number of at least 1, found 0"),
        ("mesh: {axes: [a], shape: [2.5]}", r"mesh.shape\[0\]: expected a whole number of at least 1, found 2.5"),
        ("mesh: {axes: [a, a], shape: [2, 2]}", "l.yaml:1: mesh: a mesh's axis names must differ"),
        ("mesh: {axes: [a], shape: [2, 2]}", "l.yaml:1: mesh: .* should have same size"),
        ("mesh: {axes: [a], shape: [2], axis_types: [odd]}", "l.yaml:1: mesh: a mesh's axis types must be one of Auto"),
        ("rules: {a: 1}", r"l.yaml:1: rules: expected a list of mappings with match and axes, found \{'a': 1\}"),
        ("partitions: {a: 1}", r"l.yaml:1: partitions: expected a list of mappings with match and one of fixed_shards, min_size, max_size, found \{'a': 1\}"),
        ("rules: [3]", r"l.yaml:1: rules\[0\]: expected a mapping with the keys match, axes, found 3"),
        ("rules: [{match: a}]", r"l.yaml:1: rules\[0\]: the key 'axes' is missing"),
        ("rules: [{match: a, axis: []}]", r"l.yaml:1: rules\[0\].axis: unknown key 'axis'; did you mean 'axes'\?"),
        ("rules:\n- {match: a, axes: []}\n- {match: 'b(', axes: []}", r"l.yaml:3: rules\[1\].match: 'b\(' is no regular expression: missing \), unterminated subpattern at position 1"),
        ("rules: [{match: '', axes: []}]", r"rules\[0\].match: expected a regular expression, found ''"),
        ("rules: [{match: 'a{99999999999}', axes: []}]", r"rules\[0\].match: 'a\{99999999999\}': it repeats something more than 1000 times"),
        ("rules: [{match: a, axes: model}]", r"rules\[0\].axes: expected a list with an entry per dimension, such as \[null, model\] \(\[\] replicates\), found 'model'"),
        ("rules: [{match: a, axes: }]", r"rules\[0\].axes: expected a list with an entry per dimension, .*, found null"),
        ("rules: [{match: a, axes: [3]}]", r"rules\[0\].axes\[0\]: expected null, the name of a mesh axis or a list of names, found 3"),
        ("rules: [{match: a, axes: [on]}]", r"rules\[0\].axes\[0\]: expected null, the name .*, found True"),
        ("rules: [{match: a, axes: [[x, null]]}]", r"rules\[0\].axes\[0\]\[1\]: expected the name of a mesh axis, found null"),
        ("rules: [{match: a, axes: [x, x]}]", r"rules\[0\] 'a' \(l.yaml:1\): mesh axis 'x' is used twice"),
        (MESH + "rules:\n - {match: a, axes: [null, modle]}", r"rules\[0\] 'a' \(l.yaml:3\): invalid axis names for layout \[null, modle\]: 'modle' not in the mesh \(data=4, model=2\)"),
        ("partitions: [{match: a}]", r"l.yaml:1: partitions\[0\]: expected exactly one of fixed_shards, min_size, max_size, found 0"),
        ("partitions: [{match: a, fixed_shards: 2, max_size: 3}]", "expected exactly one of fixed_shards, min_size, max_size, found 2"),
        ("partitions: [{match: a, fixed_shards: 0}]", r"partitions\[0\].fixed_shards: expected a number of shards of at least 1, found 0"),
        ("partitions: [{match: a, fixed_shards: 2, max_shards: 3}]", r"partitions\[0\].max_shards: only min_size and max_size have a max_shards"),
        ("partitions: [{match: a, fixed_shards: 2, axis: x}]", r"partitions\[0\].axis: expected the number of a dimension, found 'x'"),
        ("partitions: [{match: a, min_size: 2}]", r"partitions\[0\]: min_size needs max_shards, the number of shards to stop at"),
        ("partitions: [{match: a, max_size: 4Kxx}]", r"partitions\[0\].max_size: '4Kxx' is not a size in bytes"),
        ("partitions: [{match: a, max_size: 0B}]", r"partitions\[0\].max_size: expected a size of at least 1 byte such as 256KiB, found '0B'"),
        ("partitions: [{match: a, max_size: -5}]", "expected a size of at least 1 byte such as 256KiB, found -5"),
        ("unmatched: replcate", r"l.yaml:1: unmatched: unknown choice 'replcate'; did you mean 'replicate'\? known: replicate, error"),
        ("unmatched: 1", "l.yaml:1: unmatched: expected one of replicate, error, found 1"),
        ("select: a", "l.yaml:1: select: expected a list of regular expressions, found 'a'"),
        ("select: [1]", r"l.yaml:1: select\[0\]: expected a regular expression, found 1"),
        ("drop: ['*']", r"l.yaml:1: drop\[0\]: '\*' is no regular expression: nothing to repeat at position 0"),
        ("rename: [{match: a}]", r"l.yaml:1: rename\[0\]: the key 'to' is missing"),
        ("rename: [{match: a, to: 1}]", r"rename\[0\].to: expected the text that replaces the match, found 1"),
        (r"rename: [{match: a, to: '\1'}]", r"rename\[0\].to: .* cannot replace 'a': invalid group reference 1 at position 1; use groups of the pattern"),
        (r"rename: [{match: a, to: '\g<x>'}]", r"rename\[0\].to: .* cannot replace 'a': .*unknown group name 'x'"),
        ("cast: [{match: a, dtype: bfloat}]", r"l.yaml:1: cast\[0\].dtype: unknown dtype 'bfloat'; did you mean 'bfloat16'\? known: bool, int2"),
        ("cast: [{match: a, dtype: 3}]", r"cast\[0\].dtype: expected one of bool, int2"),
    ],
)  # fmt: skip
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        parse(text)


def test_data_from_elsewhere_is_checked_as_strictly() -> None:
    body: Any = {1: 2}
    with pytest.raises(LayoutError, match=r"^body: \[1\]: unknown key 1; known: mesh"):
        parse_layout(body, "body")
    body = ["rules"]
    with pytest.raises(LayoutError, match=r"^body: expected a mapping with the keys mesh"):
        parse_layout(body, "body")
    with pytest.raises(LayoutError, match=r"found a list of 1000 entries"):
        parse_layout({"mesh": [0] * 1000}, "body")
    with pytest.raises(LayoutError, match=r"^body: unmatched: unknown choice 'x{50,}\.\.\.; known"):
        parse_layout({"unmatched": "x" * 10_000}, "body")
    with pytest.raises(
        LayoutError, match=r"^body: expected lists, found a set, which has no order"
    ):
        parse_layout({"rules": [{"match": "a", "axes": [{"data", "model"}]}]}, "body")
