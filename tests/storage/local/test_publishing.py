"""Publishing: one rename that replaces nothing, or exchanges the old folder for the new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.local import publishing
from reshard.storage.local.publishing import publish
from reshard.storage.local.staging import staged
from reshard.storage.location import locate
from reshard.storage.targets import check_place
from tests.storage.folders import appear, fill, names, still_there, unsupported


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_target_that_appears_during_the_run_is_not_replaced(kind, tmp_path):
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
    check_place(locate(target), locate(tmp_path / "src"), overwrite=False)
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


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_replaced_on_file_systems_without_renameat2(kind, tmp_path, monkeypatch):
    target = tmp_path / "dst"
    monkeypatch.setattr(publishing, "_rename", unsupported)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    with pytest.raises(StorageError), staged(target) as stage:
        fill(stage.root)
        appear(kind, target)
        publish(stage, overwrite=False)
    monkeypatch.undo()
    still_there(kind, target)


def test_publishing_on_file_systems_without_renameat2(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "_rename", unsupported)
    with staged(tmp_path / "dst") as stage:
        fill(stage.root)
        publish(stage, overwrite=False)
    assert names(tmp_path / "dst") == ["folder", "marker"]
    with pytest.raises(TargetExistsError), staged(tmp_path / "dst") as stage:
        publish(stage, overwrite=False)
    assert names(tmp_path / "dst") == ["folder", "marker"]


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


def test_killed_after_the_exchange_the_old_folder_is_removed_by_the_next_run(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
from reshard.storage.location import locate
from reshard.storage.local.publishing import publish
from reshard.storage.local.staging import staged
from reshard.storage.location import locate
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


def test_overwriting_a_target_that_does_not_exist(tmp_path):
    with staged(tmp_path / "dst") as stage:
        publish(stage, overwrite=True)
    assert (tmp_path / "dst").is_dir()


@pytest.mark.parametrize(("kind", "what"), [("file", "no folder"), ("link", "a symbolic link")])
def test_overwriting_replaces_only_folders(kind, what, tmp_path):
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
    text = "cannot exchange two names in one step, so the existing target was left untouched; remove it"
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
