"""Staging folders: one writer at a time, and what a killed run leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reshard.errors import StorageError, TargetBusyError
from reshard.storage.local import staging
from reshard.storage.local.publishing import publish
from reshard.storage.local.staging import Staging, emptied, lock_staging, staged, staging_for
from tests.storage.folders import fill, names


def test_the_folder_appears_whole_and_nothing_else_is_left(tmp_path):
    with staged(tmp_path / "dst") as stage:
        assert stage.root == tmp_path / ".dst.reshard-partial" / "checkpoint"
        assert names(tmp_path) == [".dst.reshard-partial"]
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(tmp_path) == ["dst"]
    assert names(tmp_path / "dst") == ["folder", "marker"]


def test_missing_folders_above_are_made(tmp_path):
    with staged(tmp_path / "a" / "b" / "dst") as stage:
        publish(stage, overwrite=False)
    assert (tmp_path / "a" / "b" / "dst").is_dir()


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="midway"), staged(tmp_path / "dst") as stage:
        fill(stage.root)
        raise RuntimeError("midway")
    assert names(tmp_path) == []


HOLD = """
import sys, time
from pathlib import Path
from reshard.storage.local.staging import staged
with staged(Path(sys.argv[1])) as stage:
    (stage.root / "half").write_text("written")
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """A live process that holds the staging folder of ``dst``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "dst")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


def test_a_live_process_is_named_and_left_alone(holder, tmp_path):
    text = (
        rf"another run \(process {holder.pid}\) is writing '{tmp_path}/dst' now; wait for it to end"
    )
    with pytest.raises(StorageError, match=text), staged(tmp_path / "dst"):
        pytest.fail("two writers")
    assert (tmp_path / ".dst.reshard-partial" / "checkpoint" / "half").read_text() == "written"


def test_another_target_is_free(holder, tmp_path):
    with staged(tmp_path / "dst2") as stage:
        publish(stage, overwrite=False)
    assert holder.poll() is None


def test_the_folder_of_a_killed_run_is_taken_over(holder, tmp_path):
    holder.kill()
    holder.wait()
    left = tmp_path / ".dst.reshard-partial"
    assert (left / "lock").read_text() == str(holder.pid)
    assert (left / "checkpoint" / "half").exists()
    with staged(tmp_path / "dst") as stage:
        assert names(stage.root) == []
        assert (left / "lock").read_text() == str(os.getpid())
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_something_else_in_the_folders_place_is_removed_not_followed(kind, tmp_path):
    folder = tmp_path / ".dst.reshard-partial"
    folder.mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    if kind == "file":
        (folder / "checkpoint").write_text("")
    else:
        (folder / "checkpoint").symlink_to(tmp_path / ("precious" if kind == "link" else "none"))
    with staged(tmp_path / "dst") as stage:
        assert stage.root.is_dir()
        assert not stage.root.is_symlink()
    assert (tmp_path / "precious" / "file").read_text() == "kept"


def test_an_interrupt_while_the_folder_is_removed_frees_the_target(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(staging, "dissolve", interrupted)
        with pytest.raises(KeyboardInterrupt), staged(tmp_path / "dst"):
            pass
    with staged(tmp_path / "dst") as stage:
        assert names(stage.root) == []
    assert names(tmp_path) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    folder = tmp_path / ".dst.reshard-partial"
    folder.mkdir()
    (tmp_path / "precious").write_text("kept")
    (folder / "lock").symlink_to(tmp_path / "precious")
    text = r"cannot create .*lock.*symbolic links; remove the symbolic link in its place"
    with pytest.raises(StorageError, match=text), staged(tmp_path / "dst"):
        pytest.fail("followed")
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_lock_file_that_was_removed_meanwhile_is_locked_again(tmp_path, monkeypatch):
    """The last holder removes file and folder between our open and our lock."""
    real, tries = fcntl.flock, []

    def removed_first(fd: int, how: int) -> None:
        tries.append(fd)
        if len(tries) == 1:
            (tmp_path / ".dst.reshard-partial" / "lock").unlink()
            (tmp_path / ".dst.reshard-partial").rmdir()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with staged(tmp_path / "dst"):
        assert len(tries) == 2
        assert (tmp_path / ".dst.reshard-partial" / "lock").exists()


def test_a_folder_that_was_removed_before_the_lock_is_made_again(tmp_path, monkeypatch):
    real, tries = os.open, []

    def removed_first(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("lock"):
            tries.append(path)
            if len(tries) == 1:
                (tmp_path / ".dst.reshard-partial").rmdir()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", removed_first)
    with staged(tmp_path / "dst"):
        assert len(tries) == 2


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(StorageError, match=r"cannot lock .*No locks available; choose a target"),
        staged(tmp_path / "dst"),
    ):
        pytest.fail("no lock")


def test_an_emptied_folder_has_lost_its_journal_first(tmp_path, monkeypatch):
    """After a power failure a journal must not describe files that are not its own."""
    synced = []
    with lock_staging(tmp_path / "dst") as stage:
        chunk = stage.root / "chunk"
        stage.root.mkdir()
        chunk.touch()
        stage.journal.touch()

        def sync(path):
            synced.append((path, stage.journal.exists(), chunk.exists()))

        monkeypatch.setattr(staging, "fsync", sync)
        emptied(stage)
        assert synced == [(stage.folder, False, True)]
        assert list(stage.root.iterdir()) == []


def test_the_staging_folder_is_named_after_the_target(tmp_path):
    folder = tmp_path / ".dst.reshard-partial"
    assert staging_for(tmp_path / "dst") == Staging(tmp_path / "dst", folder, folder / "checkpoint")


@pytest.mark.parametrize(("written", "named"), [(b"4711", "4711"), (b"", "unknown")])
def test_a_new_lock_holder_gets_time_to_write_its_process_id(
    tmp_path: Path, written: bytes, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_HOLDER_SECONDS", 60.0 if written else 0.05)
    folder = staging_for(tmp_path / "target").folder
    folder.mkdir()
    with (folder / "lock").open("wb", buffering=0) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writing = threading.Timer(0.1, lock.write, [written])
        writing.start()
        with (
            pytest.raises(TargetBusyError, match=rf"another run \(process {named}\) is writing"),
            staged(tmp_path / "target"),
        ):
            pass
        writing.join()
