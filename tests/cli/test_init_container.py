"""``reshard-init``: fills a folder that may be a mount point, once, however often its container is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.init_container import MADE, RECORD, initialize
from tests.checkpoint_files import files_without_times

OPTIONS = ["--to", "safetensors", "--step", "latest", "--quiet"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training run with two steps."""
    for step in (1000, 2000):
        tree = {"kernel": np.full((8, 8), step, np.float32), "bias": np.ones(8, np.float32)}
        reshard.save(tmp_path / "run", tree, step=step)
    (tmp_path / "models").mkdir()
    return tmp_path / "run"


def words(run: Path, *options: str) -> list[str]:
    return [*(options or OPTIONS), str(run), str(run.parent / "models")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_has_what_convert_makes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert initialize(words(run)) == 0
    assert capsys.readouterr().err == f"{run.parent / 'models'} has {run}, converted\n"
    reshard.convert(run, run.parent / "alone", to="safetensors", step="latest")
    (run.parent / "models" / RECORD).rename(run.parent / "record")
    assert files_without_times(run.parent / "models") == files_without_times(run.parent / "alone")
    assert json.loads((run.parent / "record").read_text()) == [*OPTIONS, str(run)]
    assert names(run.parent) == ["alone", "models", "record", "run"]


def test_a_container_that_is_started_again_keeps_what_it_has(run: Path) -> None:
    assert initialize(words(run)) == 0
    before = files_without_times(run.parent / "models")
    reshard.save(run, {"kernel": np.zeros((8, 8), np.float32)}, step=3000)  # the latest is another
    assert initialize(words(run)) == 0
    shutil.rmtree(run)  # nor is the source asked
    assert initialize(words(run)) == 0
    assert files_without_times(run.parent / "models") == before


def test_what_a_killed_container_left_in_the_inner_folder_is_moved_up(run: Path) -> None:
    assert initialize(words(run)) == 0
    models = run.parent / "models"
    before = files_without_times(models)
    (models / MADE).mkdir()
    (models / "model.safetensors").rename(models / MADE / "model.safetensors")
    assert initialize(words(run)) == 0
    assert files_without_times(models) == before


def test_a_conversion_that_was_not_recorded_is_done_again_in_no_time(run: Path) -> None:
    inner = run.parent / "models" / MADE
    reshard.convert(run, inner, to="safetensors", step="latest")
    inode = (inner / "model.safetensors").stat().st_ino
    assert initialize(words(run)) == 0
    assert (run.parent / "models" / "model.safetensors").stat().st_ino == inode


def test_the_folder_of_another_command_is_left_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert initialize(words(run)) == 0
    before = names(run.parent / "models")
    assert initialize(words(run, "--step", "1000")) == 1
    assert f"has what another command made ({RECORD}: ['--to', 'safetensors'" in capsys.readouterr().err  # fmt: skip
    assert names(run.parent / "models") == before


def test_a_damaged_record_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "models" / RECORD).write_bytes(b"\xff{")
    assert initialize(words(run)) == 1
    assert "was left untouched; give an empty folder" in capsys.readouterr().err


def test_a_file_of_somebody_else_is_not_replaced(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run.parent / "models" / "model.safetensors"
    other.write_text("mine")
    assert initialize(words(run)) == 1
    assert f"{str(other)!r} is there already, and the converted checkpoint has a file of this name" in capsys.readouterr().err  # fmt: skip
    assert other.read_text() == "mine"


@pytest.mark.parametrize("option", ["--dry-run", "--help"])
def test_an_option_that_makes_nothing_is_told(
    run: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert initialize(words(run, option, "--step", "1000")) == 1
    assert "give no option that converts nothing here (--dry-run)" in capsys.readouterr().err
    assert names(run.parent / "models") == []


def test_an_error_of_convert_keeps_its_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert initialize(words(run, "--step", "7")) == 1
    assert initialize(words(run, "--no-such-option")) == 2
    assert initialize(["--json", str(run.parent / "none"), str(run.parent / "models")]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "MissingError"
    assert names(run.parent / "models") == []


@pytest.mark.parametrize("args", [[], ["run"], ["run", "--quiet"], ["--quiet", "run"], ["-q", "a", "--to"]])  # fmt: skip
def test_missing_words_are_told(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert initialize(args) == 2
    assert "expected SOURCE and TARGET as the last words; usage: reshard-init [OPTIONS of reshard convert] SOURCE TARGET" in capsys.readouterr().err  # fmt: skip


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("reshard+gs://bucket/run", "gs://bucket/run"),
        ("hf-models+s3://bucket/run", "s3://bucket/run"),
        ("az://account/a+b", "az://account/a+b"),
        ("/data/a+gs", "/data/a+gs"),
    ],
)
def test_the_word_by_which_a_container_is_chosen_is_cut(
    tmp_path: Path, source: str, taken: str
) -> None:
    (tmp_path / RECORD).write_text(json.dumps([taken]))
    assert initialize([source, str(tmp_path)]) == 0


def test_as_a_process(run: Path) -> None:
    command = [sys.executable, "-m", "reshard.cli.init_container"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert told.startswith("usage: reshard-init [OPTIONS of reshard convert] SOURCE TARGET\n")
    subprocess.run([*command, *words(run)], check=True)
    assert reshard.verify(run / "2000", run.parent / "models").differences == 0
