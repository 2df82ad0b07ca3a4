"""Conversions of a source on a hub that are killed: they resume at their commit, and refuse another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import ResumeError, TargetExistsError
from tests.checkpoint_files import files_of
from tests.emulators.hub import Hub, Repository
from tests.robustness.crash.killing import Point, run_killed

POINTS = [
    Point("reshard.storage.local.transaction:LocalTransaction.append", "after", 2),
    Point("reshard.conversion.convert:finish_target", "after"),
]
OPTIONS = {"workers": 2, "chunk_bytes": 400}


@pytest.fixture
def repo(hub: Hub) -> Repository:
    """A model with a branch ``main`` of one commit."""
    found = hub.repo("org/model")
    found.commit({"model.safetensors": weights(1)})
    return found


def weights(seed: int) -> bytes:
    random = np.random.default_rng(seed)
    return save({name: random.random((24, 16), np.float32) for name in "abcd"})


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.usefixtures("repo")
def test_killed_and_run_again(point: Point, tmp_path: Path) -> None:
    reshard.convert("hf://org/model", tmp_path / "undisturbed" / "t", to="orbax", **OPTIONS)
    assert run_killed(point, "hf://org/model", tmp_path / "t", to="orbax", **OPTIONS) == -9
    assert not (tmp_path / "t").exists()
    report = reshard.convert("hf://org/model", tmp_path / "t", to="orbax", **OPTIONS)
    assert report.resumed_bytes
    assert files_of(tmp_path / "t").keys() == files_of(tmp_path / "undisturbed" / "t").keys()
    assert reshard.verify(tmp_path / "t", tmp_path / "undisturbed" / "t").differences == 0


def test_killed_before_the_branch_moved(repo: Repository, tmp_path: Path) -> None:
    before = repo.refs["main"]
    assert run_killed(POINTS[0], "hf://org/model", tmp_path / "t", to="orbax", **OPTIONS) == -9
    after = repo.commit({"model.safetensors": weights(2)})
    with pytest.raises(ResumeError) as caught:
        reshard.convert("hf://org/model", tmp_path / "t", to="orbax", **OPTIONS)
    said = f"the source was 'hf://org/model@{before}' and is 'hf://org/model@{after}'"
    assert said in str(caught.value)
    pinned = f"hf://org/model@{before}"
    assert reshard.convert(pinned, tmp_path / "t", to="orbax", **OPTIONS).resumed_bytes
    assert reshard.verify(tmp_path / "t", pinned).differences == 0
    with pytest.raises(TargetExistsError):  # it is no result of what main is now
        reshard.convert("hf://org/model", tmp_path / "t", to="orbax", **OPTIONS)
