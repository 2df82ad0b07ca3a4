"""A finished output on a disk is known by its record, and removed under another name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from reshard.errors import StorageError, TargetBusyError
from reshard.storage.local.staging import FILES_OF_PREFIX
from reshard.storage.location import locate
from reshard.storage.targets import lock_target, remove_finished, stamp_of_finished

RECORDS = ("record.json", "index.json")
ASIDE = ".removed-1"


def stamp(output: Path) -> str:
    found = stamp_of_finished(locate(output), RECORDS)
    assert found is not None
    return found


def remove(output: Path, known: str) -> bool:
    return remove_finished(locate(output), known, RECORDS, ASIDE)


def write(output: Path, text: str = "made", record: str = "record.json") -> Path:
    output.mkdir()
    (output / record).write_text(text)
    (output / "chunk").write_text("x")
    return output


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("record", RECORDS)
def test_a_folder_is_known_by_its_inode_and_its_record(tmp_path: Path, record: str) -> None:
    output = write(tmp_path / "out", record=record)
    known = stamp(output)
    (output / "chunk").write_text("changed")
    assert stamp(output) == known
    shutil.copytree(output, tmp_path / "copy")
    assert stamp(tmp_path / "copy") != known
    (output / record).write_text("other")
    assert stamp(output) != known
    assert not remove(output, known)
    assert remove(output, stamp(output))
    assert left(tmp_path) == ["copy"]


def test_nothing_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        assert stamp_of_finished(locate(tmp_path / name), RECORDS) is None
        assert not remove(tmp_path / name, "known")
    assert left(tmp_path) == ["empty"]


def test_a_file_is_known_by_its_time_and_size(tmp_path: Path) -> None:
    output = tmp_path / "out.h5"
    output.write_text("made")
    known = stamp(output)
    output.write_text("longer")
    assert not remove(output, known)
    assert remove(output, stamp(output))
    assert left(tmp_path) == []


def test_what_an_interrupted_removal_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path / ASIDE)
    assert not remove(tmp_path / "out", "known")
    assert left(tmp_path) == []


def test_files_of_a_prefix_are_removed_under_their_lock(tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt-1"
    names = ["ckpt-1.data-00000-of-00001", "ckpt-1.index", "ckpt-1.record.json"]
    for name in [*names, "ckpt-10.index"]:
        (tmp_path / name).write_text(name)
    known = stamp(prefix)
    with lock_target(locate(prefix), FILES_OF_PREFIX) as held:
        with pytest.raises(TargetBusyError):
            remove(prefix, known)
        held.abort()
    assert not remove(prefix, "another")
    assert left(tmp_path) == [*names, "ckpt-10.index"]
    assert remove(prefix, known)
    assert left(tmp_path) == ["ckpt-10.index"]


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = write(tmp_path / "out")
    known = stamp(output)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    text = f"cannot remove '{tmp_path / ASIDE}': Permission denied; grant this user the permission"
    with pytest.raises(StorageError, match=f"^{re.escape(text)}$"):
        remove(output, known)
