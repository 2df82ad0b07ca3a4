"""``before_publish`` is asked once a target is proven and on the disk, and can keep it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard

TREE = {"w": np.arange(64, dtype=np.float32).reshape(8, 8)}


class NotNowError(Exception):
    """What a caller raises."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "source", TREE)
    return tmp_path / "source"


def test_it_is_called_right_before_the_target_appears(source: Path, tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def before_publish(target: str) -> None:
        asked.append((target, Path(target).exists()))

    target = tmp_path / "out"
    reshard.convert(source, target, mesh="model=2", before_publish=before_publish)
    assert asked == [(str(target), False)]
    assert not reshard.verify(source, target).differences


def test_what_it_raises_keeps_the_target_back_until_the_next_run(
    source: Path, tmp_path: Path
) -> None:
    def refuse(_: str) -> None:
        raise NotNowError

    with pytest.raises(NotNowError):
        reshard.convert(source, tmp_path / "out", mesh="model=2", before_publish=refuse)
    assert not (tmp_path / "out").exists()
    report = reshard.convert(source, tmp_path / "out", mesh="model=2")
    assert report.resumed_bytes > 0
    assert not reshard.verify(source, tmp_path / "out").differences


def test_each_of_several_targets_is_asked_for(source: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def before_publish(target: str) -> None:
        asked.append(target)
        if target.endswith("second"):
            raise NotNowError

    targets = [reshard.Target(tmp_path / name) for name in ("first", "second", "third")]
    with pytest.raises(NotNowError):
        reshard.convert_all(source, targets, before_publish=before_publish)
    assert asked == [str(tmp_path / "first"), str(tmp_path / "second")]
    there = [(tmp_path / name).exists() for name in ("first", "second", "third")]
    assert there == [True, False, False]
