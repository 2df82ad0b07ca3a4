"""The file by which TensorFlow finds the latest checkpoint of a folder: written beside a target, and never in place of a training's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import StorageError
from reshard.storage.local import publishing
from reshard.storage.local.files import storage_error
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("tensorflow")

BEGINS = "# Written by reshard: the newest checkpoint that it made in this folder.\n"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "saved", {"w": np.arange(6, dtype=np.float32)})
    return tmp_path / "saved"


def made(saved: Path, prefix: Path, **options: Any) -> Path:
    reshard.convert(saved, prefix, to="tensorflow", **options)
    return prefix.parent / "checkpoint"


def test_tensorflow_finds_the_newest_target(
    saved: Path, tmp_path: Path, tensorflow: Oracle
) -> None:
    for name in ("ckpt-1", 'odd "ü" name', "ckpt-2"):
        there = made(saved, tmp_path / "run" / name)
        assert tensorflow.ask("latest", folder=str(there.parent)) == str(there.parent / name)
    assert there.read_text() == BEGINS + 'model_checkpoint_path: "ckpt-2"\n'
    assert not [file for file in there.parent.iterdir() if file.name.startswith(".")]
    assert len(reshard.steps(there.parent)) == 2


def test_a_training_goes_on_beside_it_and_deletes_nothing(
    saved: Path, tmp_path: Path, tensorflow: Oracle
) -> None:
    """A manager of TensorFlow deletes the oldest of the checkpoints that the file lists."""
    there = made(saved, tmp_path / "run" / "ckpt-1")
    latest = tensorflow.ask("trained_on", folder=str(there.parent), steps=[5, 6])
    assert latest == str(there.parent / "ckpt-6")
    assert reshard.verify(saved, there.parent / "ckpt-1").differences == 0
    assert not list(there.parent.glob("ckpt-5.*"))
    before = there.read_bytes()
    made(saved, there.parent / "ckpt-9")
    assert there.read_bytes() == before


@pytest.mark.parametrize("kind", ["text", "empty", "folder", "dangling link"])
def test_what_is_not_ours_stays(kind: str, saved: Path, tmp_path: Path) -> None:
    there = tmp_path / "run" / "checkpoint"
    there.parent.mkdir()
    if kind == "folder":
        there.mkdir()
    elif kind == "dangling link":
        there.symlink_to("nothing")
    else:
        there.write_text('model_checkpoint_path: "ckpt-1"\n' * (kind == "text"))
    before = os.lstat(there)
    made(saved, there.parent / "ckpt-7")
    assert os.path.samestat(os.lstat(there), before)
    assert os.lstat(there).st_mtime_ns == before.st_mtime_ns


def test_a_training_that_begins_meanwhile_keeps_its_own(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, write = tmp_path / "checkpoint", publishing.write_file

    def begun(path: str, data: bytes) -> None:
        write(path, data)
        there.write_text("of a training")

    monkeypatch.setattr(publishing, "write_file", begun)
    made(saved, tmp_path / "ckpt-7")
    assert there.read_text() == "of a training"


KILLED = """
import os, signal, sys
from reshard.storage.local import publishing
publishing.name_latest = lambda _: os.kill(os.getpid(), signal.SIGKILL)
import reshard
reshard.convert(sys.argv[1], sys.argv[2], to="tensorflow")
"""


def test_killed_before_it_is_written(saved: Path, tmp_path: Path) -> None:
    """The target is whole, and the next run writes the file."""
    words = [sys.executable, "-c", KILLED, str(saved), str(tmp_path / "run" / "ckpt-7")]
    path = {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(words, check=False, env=os.environ | path, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert reshard.inspect(tmp_path / "run" / "ckpt-7").tensors
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert reshard.convert(saved, tmp_path / "run" / "ckpt-7", to="tensorflow").already_done
    there = tmp_path / "run" / "checkpoint"
    assert there.read_text() == BEGINS + 'model_checkpoint_path: "ckpt-7"\n'
    assert not [file for file in there.parent.iterdir() if file.name.startswith(".")]


def test_a_refusal_says_that_the_target_is_whole(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, _: bytes) -> None:
        raise storage_error("write", path, OSError(errno.ENOSPC, "No space left"))

    monkeypatch.setattr(publishing, "write_file", full)
    with pytest.raises(StorageError) as caught:
        made(saved, tmp_path / "ckpt-7")
    assert str(caught.value).startswith(
        f"{str(tmp_path / 'ckpt-7')!r} is published and complete, but TensorFlow does not find it as the latest: cannot write "
    )
    assert reshard.verify(saved, tmp_path / "ckpt-7").differences == 0
