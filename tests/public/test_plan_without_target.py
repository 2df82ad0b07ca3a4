"""``plan`` needs no target; it leaves out what depends on one and says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import MemoryBudgetError, PlanError
from tests.orbax_trees import put, save_standard

Capture = pytest.CaptureFixture[str]

NOTE = "no target was named, so free space and existing files were not checked"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {"w": put(np.zeros((512, 512), np.float32), "data", "model")}
    return save_standard(tmp_path_factory.mktemp("plan") / "c", tree)


def test_it_is_the_plan_to_a_target_but_for_what_depends_on_it(
    source: Path, tmp_path: Path
) -> None:
    how = {"mesh": "data=2,model=4", "compression": "zstd", "max_memory": "256MiB", "workers": 2}
    without, to = reshard.plan(source, **how), reshard.plan(source, tmp_path / "out", **how)
    assert (without.target, without.free_bytes) == (None, None)
    assert (to.target, type(to.free_bytes)) == (str(tmp_path / "out"), int)
    assert without.plan == to.plan
    assert without.tensors == to.tensors
    assert (without.carried, without.dropped, without.warnings) == (
        to.carried,
        to.dropped,
        to.warnings,
    )
    assert not (tmp_path / "out").exists()


def test_it_refuses_what_convert_would_refuse(source: Path) -> None:
    with pytest.raises(MemoryBudgetError):
        reshard.plan(source, mesh="data=8,model=1", max_memory="1KiB")
    with pytest.raises(PlanError, match="matches none of the 1 names"):
        reshard.plan(source, select=["nothing"])


def test_the_command(source: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["plan", str(source), "--mesh", "data=8,model=1"]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run([*words[:2], str(tmp_path / "out"), *words[2:], "--json"]) == 0
    to = json.loads(capsys.readouterr().out)
    assert (found["target"], found["free_bytes"]) == (None, None)
    assert {**to, "target": None, "free_bytes": None} == found
    assert run(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert NOTE in shown
    assert "free at the target" not in shown
    assert run([*words[:2], str(tmp_path / "out"), *words[2:]]) == 0
    assert NOTE not in " ".join(capsys.readouterr().out.split())


def test_convert_needs_one(source: Path, capsys: Capture) -> None:
    assert run(["convert", str(source), "--mesh", "data=8,model=1"]) == 2
    assert "DST is missing" in capsys.readouterr().err
