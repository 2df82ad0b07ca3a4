"""Targets of shared files beside other runs, other things in their place, and full disks."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import StorageError, TargetBusyError, TargetExistsError
from reshard.storage.local.staging import lock_staging, staging_for
from tests.campaigns import pairwise, rarely
from tests.checkpoint_files import files_of, files_without_times
from tests.robustness.crash.cases import CASES, FORMS

ONE, SHARDS = CASES["one"], CASES["shards"]


def convert(form: str, sources: Any, target: Path, **options: Any) -> Any:
    case = CASES[form]
    return reshard.convert(sources[case.source], target, **{**case.options, **options})


@pytest.mark.parametrize("form", rarely([*FORMS]))
def test_a_second_run_is_refused_while_the_first_lives(form, sources, tmp_path):
    target = tmp_path / "t"
    with lock_staging(target), pytest.raises(TargetBusyError) as caught:
        convert(form, sources, target)
    assert f"another run (process {os.getpid()}) is writing '{target}' now" in str(caught.value)
    assert not target.exists()
    assert not convert(form, sources, target).already_done
    assert convert(form, sources, target).already_done


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("form", rarely(["one", "ranks", "shards", "dcp", "distcp"], 2))
def test_the_disk_is_full_midway(form, sources, tmp_path, monkeypatch):
    target, real, calls = tmp_path / "t", os.pwrite, []
    most = 48 if form == "ranks" else 16  # a task is done by then

    def full(fd: int, *args: Any) -> int:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        is_shared = path.suffix in (".safetensors", ".distcp")
        calls.append(is_shared)
        if is_shared and sum(calls) > most:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, *args)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        convert(form, sources, target, workers=1)
    text = str(caught.value)
    assert text.startswith("tensor ")
    assert "free space on that file system" in text
    assert f"kept in '{staging_for(target).folder}'" in text
    assert not target.exists()
    monkeypatch.undo()
    assert convert(form, sources, target, workers=1).resumed_bytes > 0
    convert(form, sources, tmp_path / "whole")
    assert files_without_times(target) == files_without_times(tmp_path / "whole")


def appearing(target: Path, *, is_file: bool) -> Any:
    def appear(progress: Any) -> None:
        if progress.stage == "syncing" and not target.exists():
            (target if is_file else target / "precious").parent.mkdir(exist_ok=True)
            (target if is_file else target / "precious").write_text("kept")

    return appear


@pytest.mark.parametrize(
    ("form", "is_file", "overwrite"), pairwise(["one", "ranks"], [False, True], [False, True])
)
def test_what_appears_at_the_target_meanwhile_is_kept(form, is_file, overwrite, sources, tmp_path):
    target = tmp_path / "t"
    progress = appearing(target, is_file=is_file)
    with pytest.raises(TargetExistsError) as caught:
        convert(form, sources, target, overwrite=overwrite, progress=progress)
    assert str(target) in str(caught.value)
    assert "untouched" in str(caught.value)
    assert files_of(target) == {"" if is_file else "precious": b"kept"}
    target.unlink() if is_file else shutil.rmtree(target)
    assert convert(form, sources, target).resumed_bytes > 0


def put_text(target: Path) -> None:
    target.write_text("no checkpoint")


def put_folder(target: Path) -> None:
    target.mkdir()


def put_model(target: Path) -> None:
    """A Hugging Face model from elsewhere."""
    target.mkdir()
    (target / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (target / "config.json").write_text("{}")


def put_link(target: Path) -> None:
    (target.parent / "far").write_text("x")
    target.symlink_to("far")


REFUSED = [
    ("one", put_text, "is a file that is not a checkpoint"),
    (
        "one",
        put_folder,
        "is no plain file and was left untouched; a single file replaces only files",
    ),
    (
        "one",
        put_model,
        "is no plain file and was left untouched; a single file replaces only files",
    ),
    ("one", put_link, "is a symbolic link and was left untouched"),
    ("shards", put_text, "is no folder and was left untouched; overwriting replaces only folders"),
    ("shards", put_model, "is a folder that contains something other than a checkpoint"),
    ("shards", put_link, "is a symbolic link and was left untouched"),
]


@pytest.mark.parametrize(("form", "put", "text"), REFUSED)
def test_what_is_not_replaced(form, put, text, sources, tmp_path):
    target = tmp_path / "t"
    put(target)
    before = files_of(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(TargetExistsError) as caught:
            convert(form, sources, target, overwrite=overwrite)
    assert text in str(caught.value)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(("old", "new"), [("one", "one"), ("shards", "ranks"), ("ranks", "dcp")])
def test_a_checkpoint_of_ours_is_replaced_by_its_kind(old, new, sources, tmp_path):
    target = tmp_path / "t"
    convert(old, sources, target, select=["small"])
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        convert(new, sources, target)
    convert(new, sources, target, overwrite=True)
    convert(new, sources, tmp_path / "whole")
    assert files_without_times(target) == files_without_times(tmp_path / "whole")


def test_a_folder_with_a_file_of_a_stranger_is_not_replaced(sources, tmp_path):
    target = tmp_path / "t"
    convert("shards", sources, target)
    (target / "tokenizer.json").write_text("{}")
    with pytest.raises(TargetExistsError, match="something other than a checkpoint"):
        convert("ranks", sources, target, overwrite=True)
