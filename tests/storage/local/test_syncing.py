"""What is synced, in which order, and the consequences of a failed sync."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.errors import StorageError
from reshard.storage.local import publishing, syncing
from reshard.storage.local.publishing import publish
from reshard.storage.local.staging import staged
from reshard.storage.local.syncing import forget_cached, sync_tree
from tests.storage.folders import appear, fill, names


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was synced and renamed, in order."""
    made: list[str] = []
    sync, rename = os.fsync, publishing._rename

    def record_sync(fd: int) -> None:
        made.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        sync(fd)

    def record_rename(*args: Any) -> None:
        made.append("rename")
        rename(*args)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(publishing, "_rename", record_rename)
    return made


@pytest.mark.parametrize("overwrite", [False, True])
def test_order_of_syncing(overwrite, calls, tmp_path):
    if overwrite:
        appear("folder", tmp_path / "dst")
    with staged(tmp_path / "dst") as stage:
        fill(stage.root)
        publish(stage, overwrite=overwrite)
    files, folders = calls[:3], calls[3:5]
    assert sorted(files) == ["0", "1", "marker"]
    assert sorted(folders) == ["checkpoint", "folder"]
    assert calls[5:] == ["rename", tmp_path.name]


def test_new_folders_above_are_synced(calls, tmp_path):
    with staged(tmp_path / "a" / "b" / "dst") as stage:
        assert calls == [tmp_path.name, "a"]
        publish(stage, overwrite=False)
    assert calls == [tmp_path.name, "a", "checkpoint", "rename", "b"]


@pytest.mark.parametrize("failing", [1, 3, 5])
def test_a_failed_sync_publishes_nothing(failing, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing_at(failing, os.fsync))
    with (
        pytest.raises(StorageError, match=r"cannot sync .*Input/output error; the device reports"),
        staged(tmp_path / "dst") as stage,
    ):
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(tmp_path) == []


def test_a_failed_sync_after_the_rename_says_that_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing_at(6, os.fsync))
    text = f"'{tmp_path}/dst' is published and complete, but may be lost in a power failure: cannot"
    with pytest.raises(StorageError, match=text), staged(tmp_path / "dst") as stage:
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(tmp_path / "dst") == ["folder", "marker"]


def failing_at(number: int, real: Callable[[int], None]) -> Callable[[int], None]:
    made: list[int] = []

    def sync(fd: int) -> None:
        made.append(fd)
        if len(made) == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    return sync


class FakeLibrary:
    """Stands for the C library: counts, and fails where told to."""

    def __init__(self, result: int = 0) -> None:
        self.synced: list[int] = []
        self._result = result

    def syncfs(self, fd: int) -> int:
        self.synced.append(fd)
        ctypes.set_errno(errno.EIO if self._result else 0)
        return self._result


def test_many_files_are_synced_at_once(calls, tmp_path, monkeypatch):
    library = FakeLibrary()
    monkeypatch.setattr(syncing, "libc", lambda: library)
    fill(tmp_path, syncing.FSYNC_FILES)
    sync_tree(tmp_path)
    assert len(library.synced) == 1
    assert calls == []
    (tmp_path / "marker").unlink()
    sync_tree(tmp_path)
    assert len(library.synced) == 1
    assert len(calls) == syncing.FSYNC_FILES + 2


def test_a_failed_sync_of_many_files_publishes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(syncing, "libc", lambda: FakeLibrary(-1))
    with (
        pytest.raises(StorageError, match=r"cannot sync .*Input/output error"),
        staged(tmp_path / "dst") as stage,
    ):
        fill(stage.root, syncing.FSYNC_FILES)
        publish(stage, overwrite=False)
    assert names(tmp_path) == []


def test_many_files_for_real(tmp_path):
    with staged(tmp_path / "dst") as stage:
        fill(stage.root, syncing.FSYNC_FILES + 1)
        publish(stage, overwrite=False)
    assert len(names(tmp_path / "dst" / "folder")) == syncing.FSYNC_FILES + 1


@pytest.mark.parametrize("walk", [sync_tree, forget_cached])
def test_a_folder_that_cannot_be_listed_is_an_error(walk, tmp_path, monkeypatch):
    fill(tmp_path)
    real = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("folder"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot list .*folder': Permission denied; grant this"):
        walk(tmp_path)


def test_forgetting_keeps_the_bytes(tmp_path):
    fill(tmp_path)
    forget_cached(tmp_path)
    assert (tmp_path / "folder" / "0").read_text() == "new"
