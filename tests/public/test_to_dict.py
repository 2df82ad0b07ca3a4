"""What a call returns can be written as JSON, with the keys that ``--json`` writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.answers.record import Record
from reshard.cli.app import run

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "w", "axes": ["x"]}]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    tree = {
        "w": np.arange(16, dtype=np.float32).reshape(4, 4),
        "s": reshard.ShardedVariable.split(np.ones((4, 2)), 2),
    }
    reshard.save(folder / "a", tree)
    reshard.convert(folder / "a", folder / "b", mesh="x=2")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    run([*map(str, words), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    del found["command"]
    return found


def without_seconds(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("seconds", "free_bytes")}


def test_they_are_what_json_prints(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made / "a", made / "b"
    assert reshard.inspect(a).to_dict() == printed(capsys, "inspect", a)
    assert reshard.verify(a, b).to_dict() == printed(capsys, "verify", a, b)
    expected = {
        ("diff", a, b): reshard.diff(a, b),
        ("plan", a, made / "c", "--mesh", "x=2"): reshard.plan(a, made / "c", mesh="x=2"),
        ("convert", a, b, "--mesh", "x=2"): reshard.convert(a, b, mesh="x=2"),
        ("fingerprint", a, "--overwrite"): reshard.fingerprint(a, overwrite=True),
    }
    for command, found in expected.items():
        assert without_seconds(found.to_dict()) == without_seconds(printed(capsys, *command))


def test_a_number_that_json_lacks_is_text() -> None:
    progress = reshard.Progress(1, 2, 0, 1, "w")
    assert json.dumps(progress.to_dict(), allow_nan=False)
    stats = reshard.RestoreReport(1, 0, 1, 1, {"w": reshard.CastStats(0, 0, math.inf)}, 0.5)
    assert stats.to_dict()["casts"]["w"]["largest_relative_error"] == "inf"


def test_every_record_that_a_call_returns_has_it(made: Path) -> None:
    reports: list[reshard.RestoreReport] = []
    reshard.restore(made / "a", report=reports.append)
    several = [reshard.Target(made / "d", layout=LAYOUT), reshard.Target(made / "e")]
    found: list[Record] = [
        *reports,
        reshard.plan_all(made / "a", several),
        reshard.convert_all(made / "a", several),
        reshard.preview_layout(made / "a", LAYOUT),
        reshard.plan(made / "a", mesh="x=2").time(),
    ]
    for record in found:
        document = record.to_dict()
        assert json.loads(json.dumps(document, allow_nan=False)) == document
