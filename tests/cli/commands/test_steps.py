"""``reshard steps``: the steps of a run, those among them that are not finished."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run

Capture = pytest.CaptureFixture[str]

WRITTEN = datetime(2026, 1, 31, 12, 30, 15, tzinfo=UTC)


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with the steps 5, 10 and 100, a save of 200 that was interrupted, and a folder that is no step."""
    for step in (5, 10, 100):
        reshard.save(tmp_path / "run", {"w": np.ones(8, np.float32)}, step=step)
    begun = tmp_path / "run" / "200.orbax-checkpoint-tmp-7"
    begun.mkdir()
    (begun / "data").write_bytes(b"x" * 2048)
    (tmp_path / "run" / "notes").mkdir()
    for file in (tmp_path / "run").rglob("*"):
        os.utime(file, (WRITTEN.timestamp(), WRITTEN.timestamp()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stored(folder: Path) -> list[int]:
    return [file.stat().st_size for file in folder.rglob("*") if file.is_file()]


def test_steps_are_listed_with_state_size_and_time(at_work: Path, capsys: Capture) -> None:
    assert run(["steps", "run"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].startswith("run: 4 steps, 3 finished, ")
    assert lines[1] == "folder step state files size written"
    assert [line.split()[1:3] for line in lines[3:6]] == [
        [n, "finished"] for n in ("5", "10", "100")
    ]
    assert (
        lines[6] == "200.orbax-checkpoint-tmp-7 200 not finished 1 2.00 KiB 2026-01-31 12:30:15 UTC"
    )
    assert run(["steps", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in found["steps"]] == [5, 10, 100, 200]
    sizes = stored(at_work / "run" / "100")
    assert found["steps"][2] == {
        "step": 100, "name": "100", "path": "run/100", "is_finished": True, "files": len(sizes), "nbytes": sum(sizes),
        "written_at": "2026-01-31T12:30:15Z",
    }  # fmt: skip


def test_many_steps_show_the_last_ones(at_work: Path, capsys: Capture) -> None:
    for step in range(300, 345):
        shutil.copytree(at_work / "run" / "100", at_work / "run" / str(step))
    assert run(["steps", "run"]) == 0
    out = capsys.readouterr().out
    assert "… and 9 earlier steps; --all shows each" in out
    assert "\n344 " in out and "\n305 " in out and "\n304 " not in out
    assert run(["steps", "run", "--all"]) == 0
    assert "\n10 " in capsys.readouterr().out


@pytest.mark.usefixtures("at_work")
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("run/100", "run/100 is a checkpoint, not the folder of a training run; give the folder that contains the steps"),
        ("missing", "missing does not exist: expected a training run's folder; check the path"),
        ("run/notes", "run/notes contains no step; expected the folder of a training run, in which each step is a checkpoint"),
    ],
)  # fmt: skip
def test_what_is_refused(word: str, text: str, capsys: Capture) -> None:
    assert run(["steps", word]) == 1
    assert text in capsys.readouterr().err
