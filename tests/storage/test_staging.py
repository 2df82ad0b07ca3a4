"""Staging and publishing: who may write, what a killed run leaves, what is synced, what is never replaced."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.errors import StorageError, TargetBusyError, TargetExistsError
from reshard.storage import publishing, staging, syncing
from reshard.storage.publishing import publish
from reshard.storage.staging import Staging, staged, staging_for
from reshard.storage.syncing import forget_cached, sync_tree
from reshard.storage.target_checks import check_target


def fill(root: Path, files: int = 2) -> None:
    (root / "folder").mkdir()
    for number in range(files):
        (root / "folder" / f"{number}").write_text("new")
    (root / "marker").write_text("new")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- one writer at a time ----


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
from reshard.storage.staging import staged
with staged(Path(sys.argv[1])) as stage:
    (stage.root / "half").write_text("written")
    print("held", flush=True)
    time.sleep(60)
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


def test_what_a_killed_run_left_is_taken_over(holder, tmp_path):
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


def test_a_lock_that_was_removed_while_it_was_taken_is_taken_anew(tmp_path, monkeypatch):
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


def test_a_folder_that_was_removed_before_the_lock_is_made_anew(tmp_path, monkeypatch):
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


# ---- publishing replaces nothing ----


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_target_that_appears_in_between_is_not_replaced(kind, tmp_path):
    target = tmp_path / "dst"
    with (
        pytest.raises(TargetExistsError, match="exists already and was left untouched"),
        staged(target) as stage,
    ):
        fill(stage.root)
        appear(kind, target)
        publish(stage, overwrite=False)
    still_there(kind, target)
    assert names(tmp_path) == ["dst"]


@pytest.mark.parametrize("renaming", ["at once", "checked"])
def test_an_empty_folder_is_replaced(renaming, tmp_path, monkeypatch):
    if renaming == "checked":
        monkeypatch.setattr(publishing, "_rename", unsupported)
    target = tmp_path / "dst"
    target.mkdir()
    check_target(target, tmp_path / "src", overwrite=False)
    with staged(target) as stage:
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(target) == ["folder", "marker"]
    assert names(tmp_path) == ["dst"]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_appears_in_an_empty_folder_at_the_last_moment_is_kept(kind, tmp_path, monkeypatch):
    target = tmp_path / "dst"
    target.mkdir()
    real = publishing.is_empty_folder

    def looked(path: Path) -> bool:
        found = real(path)
        appear(kind, path / "mine")
        return found

    monkeypatch.setattr(publishing, "is_empty_folder", looked)
    with (
        pytest.raises(TargetExistsError, match="exists already and was left untouched"),
        staged(target) as stage,
    ):
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(target) == ["mine"]
    still_there(kind, target / "mine")
    assert names(tmp_path) == ["dst"]


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "dst").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "dst")
    for overwrite in (False, True):
        with pytest.raises(
            TargetExistsError, match="is a mount point, which no rename can replace"
        ):
            check_target(tmp_path / "dst", tmp_path / "src", overwrite=overwrite)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nor_where_the_file_system_cannot_refuse_by_itself(kind, tmp_path, monkeypatch):
    target = tmp_path / "dst"
    monkeypatch.setattr(publishing, "_rename", unsupported)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    with pytest.raises(StorageError), staged(target) as stage:
        fill(stage.root)
        appear(kind, target)
        publish(stage, overwrite=False)
    monkeypatch.undo()
    still_there(kind, target)


def test_publishing_where_the_file_system_cannot_refuse_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "_rename", unsupported)
    with staged(tmp_path / "dst") as stage:
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(tmp_path / "dst") == ["folder", "marker"]
    with pytest.raises(TargetExistsError), staged(tmp_path / "dst") as stage:
        publish(stage, overwrite=False)
    assert names(tmp_path / "dst") == ["folder", "marker"]


def unsupported(*_: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def appear(kind: str, target: Path) -> None:
    if kind == "file":
        target.write_text("old")
    elif kind == "link":
        target.symlink_to("elsewhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "old").write_text("old")


def still_there(kind: str, target: Path) -> None:
    if kind == "link":
        assert target.readlink() == Path("elsewhere")
    elif kind == "file":
        assert target.read_text() == "old"
    else:
        assert names(target) == (["old"] if kind == "folder" else [])


def test_overwriting_exchanges_and_then_removes_the_old(tmp_path, monkeypatch):
    target = tmp_path / "dst"
    appear("folder", target)
    flags = []
    real = publishing._rename
    monkeypatch.setattr(publishing, "_rename", lambda *a: (flags.append(a[2]), real(*a)))
    with staged(target) as stage:
        fill(stage.root)
        publish(stage, overwrite=True)
        assert names(target) == ["folder", "marker"]
        assert names(stage.root) == ["old"]
    assert flags == [2]
    assert names(tmp_path) == ["dst"]


def test_killed_after_the_exchange_the_new_one_is_there_and_the_old_is_cleared(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
from reshard.storage.publishing import publish
from reshard.storage.staging import staged
with staged(Path(sys.argv[1])) as stage:
    (stage.root / "marker").write_text("new")
    publish(stage, overwrite=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    appear("folder", tmp_path / "dst")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "dst")], check=False)
    assert done.returncode == -9
    assert names(tmp_path / "dst") == ["marker"]
    assert names(tmp_path / ".dst.reshard-partial" / "checkpoint") == ["old"]
    with staged(tmp_path / "dst"):
        pass
    assert names(tmp_path) == ["dst"]
    assert names(tmp_path / "dst") == ["marker"]


def test_overwriting_where_nothing_is(tmp_path):
    with staged(tmp_path / "dst") as stage:
        publish(stage, overwrite=True)
    assert (tmp_path / "dst").is_dir()


@pytest.mark.parametrize(("kind", "what"), [("file", "no folder"), ("link", "a symbolic link")])
def test_overwriting_replaces_only_folders_even_late(kind, what, tmp_path):
    target = tmp_path / "dst"
    with (
        pytest.raises(TargetExistsError, match=f"is {what} and was left untouched"),
        staged(target) as stage,
    ):
        appear(kind, target)
        publish(stage, overwrite=True)
    still_there(kind, target)


def test_overwriting_where_folders_cannot_be_exchanged(tmp_path, monkeypatch):
    appear("folder", tmp_path / "dst")
    monkeypatch.setattr(publishing, "_rename", unsupported)
    text = "cannot exchange two folders in one step, so what is there was left untouched; remove it"
    with pytest.raises(StorageError, match=text), staged(tmp_path / "dst") as stage:
        publish(stage, overwrite=True)
    still_there("folder", tmp_path / "dst")
    assert names(tmp_path) == ["dst"]


def test_a_staging_folder_that_was_replaced_is_not_published(tmp_path):
    with (
        pytest.raises(
            StorageError, match="was removed while it was written; nothing was published"
        ),
        staged(tmp_path / "dst") as stage,
    ):
        stage.root.rename(tmp_path / "taken")
        stage.root.mkdir()
        publish(stage, overwrite=False)
    assert names(tmp_path) == ["taken"]


def test_a_staging_folder_that_was_removed_is_not_published(tmp_path):
    with (
        pytest.raises(StorageError, match=r"No such file or directory; check the path"),
        staged(tmp_path / "dst") as stage,
    ):
        stage.root.rmdir()
        publish(stage, overwrite=False)
    assert names(tmp_path) == []


# ---- what is synced, and when ----


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
    text = f"'{tmp_path}/dst' is published and whole, but may be gone after a power failure: cannot"
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


# ---- targets ----


def test_target_may_be_beside_the_source_with_a_longer_name(tmp_path):
    (tmp_path / "step").mkdir()
    check_target(tmp_path / "step2", tmp_path / "step", overwrite=False)


def test_target_inside_the_source_by_way_of_a_link(tmp_path):
    (tmp_path / "src" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "src" / "in")
    with pytest.raises(StorageError, match="lies inside the source"):
        check_target(tmp_path / "link" / "dst", tmp_path / "src", overwrite=False)


def test_target_below_a_link_that_leads_to_itself(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(StorageError, match="link"):
        check_target(tmp_path / "link" / "dst", tmp_path / "src", overwrite=False)


def test_the_staging_folder_is_named_after_the_target(tmp_path):
    folder = tmp_path / ".dst.reshard-partial"
    assert staging_for(tmp_path / "dst") == Staging(tmp_path / "dst", folder, folder / "checkpoint")


@pytest.mark.parametrize(("written", "named"), [(b"4711", "4711"), (b"", "unknown")])
def test_whoever_took_the_lock_only_just_is_waited_for(
    tmp_path: Path, written: bytes, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_HOLDER_SECONDS", 10.0 if written else 0.05)
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
