"""Layouts and meshes that make no sense."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import (
    LayoutError,
    ReshardError,
)
from tests.robustness.bad_input.checking import (
    refused,
    refused_by_command,
)

NAMES = ["params/kernel", "params/bias", "table", "count", "wave", "key"]


def rules(*entries: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    return {"mesh": {"axes": ["x", "y"], "shape": [4, 2]}, "rules": list(entries), **sections}


@pytest.mark.parametrize(
    ("layout", "texts"),
    [
        (
            rules({"match": "kernel", "axes": [None, "modle"]}),
            ("rules[0] 'kernel'", "'modle' not in the mesh (x=4, y=2)"),
        ),
        (rules({"match": "kernel", "axis": ["x"]}), ("rules[0]", "axis", "match, axes")),
        ({"meshes": {}, "rules": []}, ("meshes", "mesh, rules, partitions, unmatched")),
        (rules({"match": "ker(nel", "axes": ["x"]}), ("rules[0]", "'ker(nel'", "regular expression")),
        (
            rules({"match": "kernel", "axes": ["x", None, "y"]}),
            ("'params/kernel' of shape [16, 8]", "more axes than dimensions", "for 2"),
        ),
        (
            rules({"match": "bias", "axes": [["x", "y"]]}, {"match": "count", "axes": ["x"]}),
            ("'count'", "6", "'x'", "4", "rules[1]"),
        ),
        (rules({"match": "kernel", "axes": ["x", "x"]}), ("'kernel'", "'x'")),
        (rules(unmatched="error"), ("matches no rule of", "'unmatched: error'")),
        (rules(partitions=[{"match": "bias", "fixed_shards": 2, "axis": 3}]),
            ("'params/bias' of shape [8]", "splits axis 3, which it does not")),
        ({"rules": [{"match": "kernel", "axes": ["x"]}]}, ("but there is no mesh", "or name one (")),
    ],
)  # fmt: skip
def test_layout_that_makes_no_sense(layout, texts, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", LayoutError, *texts, layout=layout)
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(layout))
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=["--layout", file])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("l.yaml", "mesh: {axes: [x, shape: [2]", ("l.yaml:2: not YAML: did not find expected",)),
        ("l.yaml", "rules: [\x00]", ("l.yaml",)),
        ("l.json", '{"mesh": ', ("l.json", "1")),
        ("l.yaml", "- a\n- b\n", ("l.yaml", "expected")),
        ("l.yaml", "", ("l.yaml", "expected")),
    ],
)
def test_layout_file_that_cannot_be_read(name, text, said, source, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    refused(source, tmp_path / "dst", LayoutError, *said, layout=tmp_path / name)
    refused_by_command(capsys, source, tmp_path / "dst", *said, args=["--layout", tmp_path / name])


def test_layout_file_that_is_missing(source, tmp_path, capsys):
    text = str(tmp_path / "none.yaml")
    refused(source, tmp_path / "dst", ReshardError, text, layout=tmp_path / "none.yaml")
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--layout", text])


def test_layout_that_is_none(source, tmp_path):
    text = (
        "layout is 7; expected the path of a layout file, its content as a mapping, a LayoutMap, or a tree of "
        "TensorLayouts, jax shardings or jax.ShapeDtypeStructs"
    )
    refused(source, tmp_path / "dst", LayoutError, text, layout=7)
    refused(source, tmp_path / "dst", LayoutError, "mesh is 8; expected a DeviceMesh", mesh=8)


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ("data", "data=4,model=2"),
        ("data=x", "data=4,model=2"),
        ("=3", "data=4,model=2"),
        ("", "data=4,model=2"),
        ("data=0", "each size of a mesh must be at least 1, but the shape is [0]"),
        ("data=2,data=4", "a mesh's axis names must differ, but are ['data', 'data']"),
    ],
)
def test_mesh_that_makes_no_sense(mesh, text, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", LayoutError, text, mesh=mesh)
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--mesh", mesh], code=2)


def test_layout_rule_that_matches_nothing_is_a_warning(source, tmp_path, capsys):
    layout = rules({"match": "kernal", "axes": ["x"]}, {"match": "kernel", "axes": ["x"]})
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    report = reshard.convert(source, tmp_path / "dst", layout=tmp_path / "layout.json")
    (warning,) = (w for w in report.warnings if "kernal" in w)
    assert "rules[0] 'kernal'" in warning
    assert "matches no tensor" in warning
    args = ["convert", source, tmp_path / "dst2", "--layout", tmp_path / "layout.json"]
    assert run(list(map(str, args))) == 0
    printed = capsys.readouterr()
    assert "'kernal'" in printed.out + printed.err
