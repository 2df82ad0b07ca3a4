"""The benchmark of deltas runs, a program of its own beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_small_versions(tmp_path: Path) -> None:
    words = "-m benchmarks.deltas.run --mib 16 --percent 1 --rounds 1 --work"
    done = subprocess.run(
        [sys.executable, *words.split(), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("1 % of the elements: a version has 16,777,")
    assert [line.split("|")[1].strip() for line in lines[5:]] == [
        "cp",
        "delta: script",
        "delta: xor",
        "delta: reshard, 256MiB",
        "apply: script",
        "apply: reshard, 256MiB",
        "apply: reshard in place, 256MiB",
    ]
    assert list(tmp_path.iterdir()) == []
