"""The benchmark of what torch and Keras saved runs, their libraries beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.xdist_group("torch")
def test_small_checkpoints_of_torch_and_keras(tmp_path: Path) -> None:
    words = "-m benchmarks.formats.foreign --mib 16 --rounds 1 --work"
    done = subprocess.run(
        [sys.executable, *words.split(), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == [
        "cp",
        "DCP to safetensors: script",
        "DCP to safetensors: reshard, 256MiB",
        "Keras to Orbax: script",
        "Keras to Orbax: reshard, 256MiB",
    ]
    assert list(tmp_path.iterdir()) == []
