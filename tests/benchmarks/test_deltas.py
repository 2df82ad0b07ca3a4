"""The benchmark of deltas runs, a program of its own beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.delta_by_hand import apply, delta, fold, make
from tests.delta_layout import stored

ROOT = Path(__file__).parents[2]


def test_both_ways_to_apply_give_the_new_version(tmp_path: Path) -> None:
    make(tmp_path, 16, 1.0)
    delta(tmp_path / "old", tmp_path / "new", tmp_path / "made")
    for act in (apply, fold):
        target = tmp_path / act.__name__
        act(tmp_path / "old", tmp_path / "made", target)
        assert stored(target) == stored(tmp_path / "new")


def run(folder: Path, words: str) -> list[str]:
    """The lines that the benchmark prints; nothing stays in its folder."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.deltas.run", *words.split(), "--work", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout.splitlines()


@pytest.mark.campaign
def test_small_versions(tmp_path: Path) -> None:
    lines = run(tmp_path, "--mib 16 --percent 1 --rounds 1")
    assert lines[1].startswith("1 % of the elements: a version has 16,777,")
    assert lines[1].endswith(" for each element that changed")
    assert [line.split("|")[1].strip() for line in lines[5:]] == [
        "cp",
        "delta: script",
        "delta: xor",
        "delta: reshard, 256MiB",
        "apply: script",
        "apply: fold",
        "apply: reshard, 256MiB",
    ]


@pytest.mark.campaign
def test_the_peaks_of_small_versions(tmp_path: Path) -> None:
    lines = run(tmp_path, "--memory --mib 16 --percent 1 --budget 64MiB")
    assert lines[1].endswith(" bytes, a budget of 64MiB")
    assert [line.split("|")[1].strip() for line in lines[5:]] == ["delta", "apply"]
    assert all(line.endswith("| 192 |") for line in lines[5:])
