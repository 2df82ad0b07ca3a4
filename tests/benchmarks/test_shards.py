"""The benchmark of another number of shards runs, TensorFlow beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.xdist_group("tensorflow")
def test_a_small_table_gets_other_shards(tmp_path: Path) -> None:
    words = "-m benchmarks.shards.run --gib 0.002 --rounds 1 --work"
    done = subprocess.run(
        [sys.executable, *words.split(), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == ["cp", "8 to 3: script", "8 to 3: reshard, 256MiB"]
    assert list(tmp_path.iterdir()) == []
