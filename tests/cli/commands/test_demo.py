from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import reshard.demo
from reshard.cli.app import run
from reshard.errors import ReshardError


def test_the_demo_runs_in_the_given_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path | None] = []
    monkeypatch.setattr(reshard.demo, "run_demo", asked.append)
    assert run(["demo"]) == 0
    assert run(["demo", "--dir", str(tmp_path)]) == 0
    assert asked == [None, tmp_path]


def test_json_keeps_the_story_off_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def tell(_: Path | None) -> None:
        print("own words")
        subprocess.run(["echo", "a child's words"], check=True)

    monkeypatch.setattr(reshard.demo, "run_demo", tell)
    assert run(["demo", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"command": "demo", "directory": None}
    assert "a child's words" in err


def test_stdout_is_given_back_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Path | None) -> None:
        raise ReshardError("jax is not installed")

    monkeypatch.setattr(reshard.demo, "run_demo", fail)
    before = os.fstat(1)
    assert run(["demo", "--json"]) == 1
    assert os.path.samestat(before, os.fstat(1))
    assert json.loads(capfd.readouterr().out)["error"]["message"] == "jax is not installed"
