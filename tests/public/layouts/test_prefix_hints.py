"""Hints when all names exist under another prefix; following the hint works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.cli.app import run
from reshard.errors import LayoutError, PlanError, TreeError
from reshard.layout.prefixes import pattern_hint
from tests.orbax_trees import save_standard

Capture = pytest.CaptureFixture[str]

LAYERS = {f"layer{n}": {"kernel": np.full((4, 4), n, np.float32)} for n in range(107)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prefixes")
    save_standard(root / "plain", LAYERS)
    save_standard(root / "params", {"params": LAYERS, "opt.state": {"count": np.arange(3)}})
    v1.save_checkpointables(root / "items", {"default": LAYERS, "meta": {"epoch": np.arange(2)}})
    small = {"w": np.zeros(4, np.float32)}
    v1.save_checkpointables(root / "twice", {"model": small, "ema": small, "deep": {"in": small}})
    return root


def refused(path: Path, **how: Any) -> str:
    with pytest.raises(TreeError) as caught:
        reshard.restore(path, **how)
    return str(caught.value)


def check(tree: Any) -> None:
    assert tree["layer106"]["kernel"][0, 0] == 106
    assert len(tree) == 107


def test_hint_where_all_names_are_in_one_item(root: Path) -> None:
    error = refused(root / "items", like=LAYERS)
    assert "  every one of the 107 names is there below 'default/': pass item='default'\n" in error
    assert "asked for, but not in the checkpoint: 107 " in error
    assert "… and 104 more" in error
    assert len(error.splitlines()) < 15
    check(reshard.restore(root / "items", LAYERS, item="default"))


def test_hint_where_all_names_are_below_one_prefix(root: Path) -> None:
    error = refused(root / "params", like=LAYERS)
    assert (
        "every one of the 107 names is there below 'params/': pass select=['^params/'] and "
        "rename=[('^params/', '')]\n"
    ) in error
    check(
        reshard.restore(
            root / "params", LAYERS, select=["^params/"], rename=[("^params/", "")]
        )
    )  # fmt: skip


def test_the_target_has_the_prefix(root: Path) -> None:
    error = refused(root / "plain", like={"model": {"params": LAYERS}})
    assert (
        "every one of the 107 names is there without 'model/params/': rename=[('^', 'model/params/')] puts it "
        "before the names of the checkpoint\n"
    ) in error
    found = reshard.restore(
        root / "plain", {"model": {"params": LAYERS}}, rename=[("^", "model/params/")]
    )
    check(found["model"]["params"])


def test_two_items_have_all_of_it(root: Path) -> None:
    error = refused(root / "twice", like={"w": np.zeros(4, np.float32)})
    assert (
        "the name is there below 'deep/in/' and below 'ema/' and below 'model/': pass item='deep' and "
        "rename=[('^in/', '')] or pass item='ema' or pass item='model'"
    ) in error
    target = {"w": np.ones(4, np.float32)}
    found = reshard.restore(root / "twice", target, item="deep", rename=[("^in/", "")])
    assert found["w"].tolist() == [0, 0, 0, 0]


def test_nothing_is_guessed_where_names_differ(root: Path) -> None:
    for target in (
        {"other": {"kernel": np.zeros((4, 4), np.float32)}},
        {"layer1": LAYERS["layer1"]},
    ):
        assert "below" not in refused(root / "params", like=target | {"more": np.zeros(3)})


def test_a_tree_of_layouts_with_another_prefix(root: Path) -> None:
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    tree = dict.fromkeys(LAYERS, where)
    error = refused(root / "params", layout=tree, select=["^params/"])
    assert (
        "the tree of layouts begins below 'params/' of the checkpoint; put it below that key"
        in error
    )
    reshard.restore(root / "params", layout={"params": tree}, select=["^params/"])
    error = refused(root / "plain", layout={"params": tree})
    assert "the checkpoint's names begin below 'params/' of the tree of layouts" in error


@pytest.mark.parametrize(
    ("path", "pattern", "hint"),
    [
        ("params", "^layer7/", "; below 'params/' it would match 1 of them: write '^params/layer7/'; correct"),
        ("items", "^layer10", "; below 'default/' it would match 8 of them: write '^default/layer10'; correct"),
        ("plain", "^params/layer7/", "; without 'params/', with which no name begins, it would match 1 of them: "
         "write '^layer7/'; correct"),
        ("plain", "a/b/layer1/k", "; without 'a/b/', with which no name begins, it would match 1 of them: "
         "write 'layer1/k'; correct"),
        ("plain", "^layer7/bias", "…); correct or remove it"),
        ("params", "^model/", "; no name begins with 'model/': they begin with 'opt.state/', 'params/'; correct or remove it"),
        ("params", "^parms/", "; the nearest name is 'params': write '^params/'; correct or remove it"),
        ("plain", "krenel$", "; the nearest name is 'kernel': write 'kernel$'; correct or remove it"),
        ("params", r"(^)layer7/", "; below 'params/' it would match 1 of them; correct or remove it"),
    ],
)  # fmt: skip
def test_rules_that_match_nothing(
    root: Path, path: str, pattern: str, hint: str, capsys: Capture
) -> None:
    for rule in ({"select": [pattern]}, {"drop": [pattern]}, {"rename": {pattern: "x"}}):
        with pytest.raises(PlanError) as caught:
            reshard.plan(root / path, **rule)
        assert hint in str(caught.value)
    assert run(["plan", str(root / path), "--select", pattern]) == 1
    assert hint in capsys.readouterr().err
    if better := re.search("write '(.*?)'", hint):
        assert reshard.plan(root / path, select=[better[1]]).tensors


def test_keys_of_layouts_that_match_nothing(root: Path) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((2,), ("model",)))
    layout["^layer7/"] = ("model", None)
    expected = "; below 'params/' it would match 1 of them: write '^params/layer7/'"
    (warning, *_) = reshard.plan(root / "params", layout=layout).warnings
    assert warning == f"the layout map's key '^layer7/' matches no tensor{expected}"
    file = {
        "mesh": {"axes": ["model"], "shape": [2]},
        "rules": [{"match": "^layer7/", "axes": ["model", None]}],
    }
    (warning, *_) = reshard.plan(root / "params", layout=file).warnings
    assert warning.endswith(f"matches no tensor{expected}")


def test_a_partition_that_matches_nothing(root: Path) -> None:
    with pytest.raises(LayoutError) as caught:
        reshard.restore(root / "params", partition={"^layer7/": 2})
    assert "; below 'params/' it would match 1 of them: write '^params/layer7/'; correct" in str(
        caught.value
    )


def test_a_prefix_with_special_characters() -> None:
    names = ["a.b/x", "a.b/y"]
    hint = pattern_hint(re.compile("^x"), names)
    assert hint == r"; below 'a.b/' it would match 1 of them: write '^a\\.b/x'"
    assert pattern_hint(re.compile("zzz"), names) == ""
