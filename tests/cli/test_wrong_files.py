"""A file that a command line names is refused with exit code 1, whatever it is for: its content is no word of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run

CASES = [
    ("convert", "--layout"),
    ("convert", "--map"),
    ("plan", "--layout"),
    ("plan", "--map"),
    ("delta", "--layout"),
    ("delta", "--map"),
    ("verify", "--map"),
]


@pytest.mark.parametrize(("command", "option"), CASES)
def test_a_wrong_file(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "weight_v000001")
    reshard.save(source, {"w": np.zeros(3, np.float32)})
    paths = {"verify": [source, source], "delta": [source, source, target]}
    file = tmp_path / "wrong.yaml"
    words = [command, *paths.get(command, [source, target]), option, str(file)]
    assert run(words) == 1
    assert f"{option[2:]} file '{file}' cannot be read: No such file" in capsys.readouterr().err
    file.write_text("rulez: []\n")
    assert run(words) == 1
    assert f"error: {file}:1: rulez: unknown key 'rulez'" in capsys.readouterr().err
    assert not Path(target).exists()


@pytest.mark.parametrize("name", ["hf-lama", "--reverse"])
def test_wrong_words(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--map", name] if name == "hf-lama" else [name]
    assert run(["convert", str(tmp_path), str(tmp_path / "t"), *words]) == 2
    assert capsys.readouterr().err.endswith("\nsee: reshard convert --help\n")
