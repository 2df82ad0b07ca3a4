"""Attempts: what a task that was given up writes reaches no target, and it can make no file any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reshard.errors import StorageError
from reshard.storage.host import host_name
from reshard.storage.local.files import OpenFiles, open_new
from reshard.storage.local.staging import (
    accept,
    attempts_in,
    begin_attempt,
    end_attempts,
    has_attempt,
    open_attempts,
)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    (tmp_path / "staging" / "checkpoint").mkdir(parents=True)
    return tmp_path / "staging"


def written(staging: Path, file: str, data: bytes) -> tuple[Path, str]:
    attempts = attempts_in(staging)
    open_attempts(attempts)
    name = begin_attempt(str(attempts))
    path = attempts / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return attempts, name


def test_files_of_an_attempt_are_moved_in_place_of_what_is_there(staging: Path) -> None:
    attempts, name = written(staging, "w/c/0", b"new")
    root = staging / "checkpoint"
    (root / "w/c").mkdir(parents=True)
    (root / "w/c/0").write_bytes(b"old one")
    accept(str(attempts), name, str(root), ["w/c/0"], {})
    assert (root / "w/c/0").read_bytes() == b"new"
    assert not (attempts / name / "w/c/0").exists()


def test_folders_are_made_and_shared_files_get_their_heads(staging: Path) -> None:
    attempts, name = written(staging, "model.safetensors", b"\0\0\0\0data")
    root = str(staging / "checkpoint")
    accept(str(attempts), name, root, ["model.safetensors"], {"model.safetensors": (b"head", 10)})
    assert Path(root, "model.safetensors").read_bytes() == b"headdata\0\0"
    attempts, name = written(staging, "a/b/c", b"x")
    accept(str(attempts), name, root, ["a/b/c"], {})
    assert Path(root, "a/b/c").read_bytes() == b"x"


def test_an_ended_attempt_makes_no_file(staging: Path) -> None:
    attempts, name = written(staging, "w/c/0", b"new")
    folder = f"{attempts}/{name}"
    with OpenFiles(folder, 8, is_there=True) as files:
        os.write(files.fd("open/0"), b"before")
        end_attempts(staging)
        os.write(files.fd("open/0"), b"after")  # of a file that nobody sees any more
        with pytest.raises(StorageError, match="cannot create"):
            files.fd("w/c/1")
    with pytest.raises(StorageError, match="cannot create"):
        os.close(open_new(f"{folder}/w/c/2", folder))
    with pytest.raises(StorageError, match="cannot move"):
        accept(str(attempts), name, str(staging / "checkpoint"), ["w/c/0"], {})
    assert sorted(path.name for path in staging.rglob("*")) == ["checkpoint"]


def test_a_new_run_ends_the_attempts_of_the_last(staging: Path) -> None:
    first, name = written(staging, "w", b"1")
    second = attempts_in(staging)
    open_attempts(second)
    assert not first.exists()
    assert not has_attempt(str(first), name)
    assert has_attempt(str(second), begin_attempt(str(second)))
    with pytest.raises(StorageError) as caught:
        begin_attempt(str(first))
    assert str(caught.value) == (
        f"host {host_name()!r} does not see '{first}': either it does not share the file system of the target, or the run that began this "
        "task is over; leave that folder alone, give only executors whose workers share this file system, and run again"
    )
