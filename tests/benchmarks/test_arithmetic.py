"""The benchmark of arithmetic runs, and what it calls an average by hand is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.peers.average_by_hand import NAME, mean, read

ROOT = Path(__file__).parents[2]


def test_the_peers(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / str(number)).mkdir()
        save_file({"w": np.full((2, 2), number, np.float32)}, tmp_path / str(number) / NAME)
    read(tmp_path / "1", tmp_path / "3", tmp_path / "copied")
    assert (tmp_path / "copied" / NAME).read_bytes() == (tmp_path / "1" / NAME).read_bytes()
    mean(tmp_path / "1", tmp_path / "3", tmp_path / "mean")
    assert np.all(load_file(tmp_path / "mean" / NAME)["w"] == 2)


NAMES = {
    "averages": [
        "read eight, write one",
        "by hand, whole tensors",
        "reshard convert of one",
        "reshard merge of eight",
    ],
    "codes": ["compressed-tensors", "reshard convert --dequantize"],
    "lora": [
        "reshard convert",
        "with an adapter of rank 16",
        "with an adapter of rank 32",
    ],
}


@pytest.mark.campaign
@pytest.mark.parametrize("part", NAMES)
def test_small(tmp_path: Path, part: str) -> None:
    words = [part, "--mib", "32", "--rounds", "1", "--cold", "--work", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.arithmetic.run", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[5:]] == NAMES[part]
