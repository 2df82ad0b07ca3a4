"""The benchmark of a hand-over runs: the script, the map and the way back make the same of a small model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
def test_a_small_model_is_handed_over_and_back(tmp_path: Path) -> None:
    words = "-m benchmarks.handover.run --layers 2 --width 256 --rounds 1 --budgets 256MiB --work"
    done = subprocess.run(
        [sys.executable, *words.split(), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the map makes what the script makes: equal: 21 of 21 tensors" in done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == [
        "cp",
        "serve: script",
        "serve: reshard, 256MiB",
        "back: script",
        "back: reshard, 256MiB",
    ]
    assert list(tmp_path.iterdir()) == []
