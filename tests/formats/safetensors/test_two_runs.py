"""Rank files of two conversions in one folder, and of one that is not whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import reshard

LAYOUT = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": ["x"]}]}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The rank files of two steps of a training run."""
    made = []
    for step in (1, 2):
        source, target = tmp_path / f"source-{step}", tmp_path / f"ranks-{step}"
        reshard.save(source, {"w": np.full((8, 2), step, np.float32), "b": np.zeros(3, np.int8)})
        reshard.convert(source, target, to="safetensors", files="ranks", layout=LAYOUT)
        made.append(target)
    return made


def test_files_of_two_runs_are_refused(runs: list[Path]) -> None:
    first, second = runs
    file = "model-rank-00002-of-00004.safetensors"
    shutil.copy(second / file, first / file)
    with pytest.raises(reshard.CorruptError, match="were written by two conversions; keep the"):
        reshard.inspect(first)


def test_a_lost_file_is_noticed(runs: list[Path]) -> None:
    (runs[0] / "model-rank-00003-of-00004.safetensors").unlink()
    with pytest.raises(
        reshard.MissingError, match=r"00003-of-00004\.safetensors is missing; 3 of 4"
    ):
        reshard.restore(runs[0])


def test_the_same_step_converted_again_has_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again"
    reshard.convert(tmp_path / "source-1", again, to="safetensors", files="ranks", layout=LAYOUT)
    for file in again.iterdir():
        assert file.read_bytes() == (runs[0] / file.name).read_bytes()
