"""Patterns that are not supported, or that cost Python's search years, through the command and from Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import LayoutError, PlanError

Capture = pytest.CaptureFixture[str]
HOSTILE = "^([a-z0-9_/]+)+!$"
TREE = {
    "params": {
        "layers": {"attention": {"query_projection_of_the_first_layer": np.zeros(4)}},
        "größe": np.ones(4),
    }
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patterns") / "src"
    reshard.save(path, TREE)
    return path


RULES: dict[str, Callable[[str], Any]] = {
    "select": lambda pattern: [pattern],
    "drop": lambda pattern: [pattern],
    "rename": lambda pattern: [(pattern, "x")],
    "cast": lambda pattern: [(pattern, "float32")],
}


@pytest.mark.parametrize("kind", RULES)
def test_rules_from_python(source: Path, kind: str) -> None:
    make = RULES[kind]
    with pytest.raises(PlanError, match=rf"^{kind} '\(\?!params\)': look-ahead and look-behind .* are not supported; "
                       r"leave names out with drop, or put a rule"):  # fmt: skip
        reshard.plan(source, **{kind: make("(?!params)")})
    with pytest.raises(PlanError, match=f"^{kind} .* matches none of the 2 names"):
        reshard.plan(source, **{kind: make(HOSTILE)})
    with pytest.raises(PlanError, match=rf"^{kind} '\\\\w' cannot be used on 'params/größe': \\w is supported in ASCII "
                       r"names only; list the characters"):  # fmt: skip
        reshard.plan(source, **{kind: make(r"\w")})


def test_a_rename_is_made_as_before(source: Path) -> None:
    made = reshard.plan(source, rename=[("^(?P<top>params)/(größe|layers)", r"\g<2>/\g<top>/\1")])
    names = [tensor.target for tensor in made.tensors]
    assert names == [
        "größe/params/params",
        "layers/params/params/attention/query_projection_of_the_first_layer",
    ]


def test_names_do_not_grow_without_end(source: Path) -> None:
    with pytest.raises(PlanError, match=r"which is not a usable name; .* may have 4096 characters"):
        reshard.plan(source, rename=[("(.*)", r"\1" * 1000)])
    with pytest.raises(
        PlanError, match="the replacement has 16385 characters; shorten it to at most 16384"
    ):
        reshard.plan(source, rename=[("a", "x" * 16385)])


def test_the_counts_of_all_patterns_are_bounded(source: Path) -> None:
    many = [f"[^x]{{999}}{number}" for number in range(200)]
    words = "the counts of all patterns together repeat more than 100000 parts; use"
    for rules in ({"select": many}, {"cast": [(pattern, "int8") for pattern in many]}):
        with pytest.raises(PlanError, match=words):
            reshard.plan(source, **rules)
    with pytest.raises(LayoutError, match=rf"rules\[100\].match: .*{words}"):
        reshard.plan(source, layout={"rules": [{"match": pattern, "axes": []} for pattern in many]})


def test_rules_of_a_layout_file(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    file.write_text("mesh: {m: 2}\nrules:\n- {match: '(?<!x)size', axes: [m]}\n")
    with pytest.raises(
        LayoutError,
        match=r"l.yaml:3: rules\[0\].match: '\(\?<!x\)size': look-ahead and look-behind",
    ):
        reshard.plan(source, layout=file)
    for match in (HOSTILE, "(?:^|$)" * 40 + r"z\b"):
        hostile = {
            "mesh": {"m": 2},
            "rules": [{"match": match, "axes": ["m"]}],
            "select": ["layers"],
        }
        warnings = reshard.plan(source, layout=hostile).warnings
        assert any("matches no tensor" in warning for warning in warnings)
    beyond = {"mesh": {"m": 2}, "rules": [{"match": r"/\w+$", "axes": ["m"]}]}
    with pytest.raises(
        LayoutError,
        match=r"^rules\[0\] .* cannot be used on 'params/größe': \\w is supported in ASCII",
    ):
        reshard.plan(source, layout=beyond)


def test_the_first_rule_that_matches_replaces_a_look_behind(source: Path) -> None:
    """The remedy that the message names: an earlier rule takes what the later one is not for."""
    rules = [{"match": "attention/.*layer$", "axes": []}, {"match": "^params/", "axes": ["m"]}]
    plan = reshard.plan(source, layout={"mesh": {"m": 2}, "rules": rules})
    axes = {t.target: t.target_axes for t in plan.tensors}
    assert axes["params/größe"] == ("m",)
    assert axes["params/layers/attention/query_projection_of_the_first_layer"] == (None,)


def test_keys_of_a_layout_map_are_pythons(source: Path) -> None:
    layouts = reshard.LayoutMap(reshard.DeviceMesh((2,), ("m",)))
    layouts[r"(?<=params/)gr\w+"] = ("m",)
    plan = reshard.plan(source, layout=layouts)
    assert {t.target_axes for t in plan.tensors} == {("m",), (None,)}


def test_the_command(source: Path, capsys: Capture) -> None:
    assert run(["plan", str(source), "--drop", r"(a)\1"]) == 2
    assert r"drop '(a)\\1': references to a group" in " ".join(capsys.readouterr().err.split())
    assert run(["plan", str(source), "--select", HOSTILE]) == 1
    assert "matches none of the 2 names" in " ".join(capsys.readouterr().err.split())
    assert run(["diff", str(source), str(source), "--select", "(" * 499 + "x" + ")" * 499]) == 2
    assert "parentheses are nested more than 100 deep; use fewer" in " ".join(
        capsys.readouterr().err.split()
    )


def test_importing_reshard_does_not_load_the_search() -> None:
    code = "import sys, reshard; reshard.LayoutMap()['a'] = (); print('re2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"
