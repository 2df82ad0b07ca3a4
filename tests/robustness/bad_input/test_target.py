"""Targets that exist, overlap with the source, or cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import (
    CorruptError,
    StorageError,
    TargetExistsError,
)
from tests.robustness.bad_input.checking import (
    converts,
    nothing_changes,
    refused,
    refused_by_command,
)


def test_an_empty_folder_is_fine(source, tmp_path):
    for target in (tmp_path / "dst", tmp_path / "saved", tmp_path / "by command"):
        target.mkdir()
    converts(source, tmp_path / "dst")
    reshard.save(tmp_path / "saved", {"w": np.arange(3.0)})
    assert reshard.verify(tmp_path / "saved").differences == 0
    assert run(["convert", str(source), str(tmp_path / "by command")]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["by command", "dst", "saved", "src"]


def test_a_folder_with_anything_in_it_is_not_empty(source, tmp_path):
    (tmp_path / "dst" / ".hidden").mkdir(parents=True)
    text = f"the target {str(tmp_path / 'dst')!r} exists already and was left untouched"
    refused(source, tmp_path / "dst", TargetExistsError, text)
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        reshard.save(tmp_path / "dst", {"w": np.arange(3.0)})
    assert (tmp_path / "dst" / ".hidden").is_dir()


@pytest.mark.parametrize("kind", ["checkpoint", "file", "link", "dangling link"])
def test_target_exists(kind, source, tmp_path, capsys):
    target = tmp_path / "dst"
    make(kind, target, source)
    text = f"the target {str(target)!r} exists already and was left untouched; choose another, or ask to overwrite it (overwrite)"
    refused(source, target, TargetExistsError, text)
    refused_by_command(capsys, source, target, text)


def make(kind: str, target: Path, source: Path) -> None:
    other = target.with_name("other")
    if kind == "checkpoint":
        shutil.copytree(source, target)
    elif kind == "empty folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("precious")
    elif kind == "link":
        shutil.copytree(source, other)
        target.symlink_to(other)
    else:
        target.symlink_to(other)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("file", "no folder"), ("link", "a symbolic link"), ("dangling link", "a symbolic link")],
)
def test_overwriting_what_is_no_folder(kind, what, source, tmp_path, capsys):
    target = tmp_path / "dst"
    make(kind, target, source)
    text = f"the target {str(target)!r} is {what} and was left untouched; overwriting replaces only folders"
    refused(source, target, TargetExistsError, text, overwrite=True)
    refused_by_command(capsys, source, target, text, args=["--overwrite"])


def test_overwriting_a_folder_of_something_else(source, tmp_path, capsys):
    (tmp_path / "dst" / "thesis").mkdir(parents=True)
    (tmp_path / "dst" / "thesis" / "chapter1.tex").write_text("It was")
    text = "is a folder that contains something other than a checkpoint, and was left untouched"
    refused(source, tmp_path / "dst", TargetExistsError, text, overwrite=True)
    refused_by_command(capsys, source, tmp_path / "dst", text, args=["--overwrite"])


@pytest.mark.parametrize("kind", ["checkpoint", "empty folder"])
def test_overwriting_a_checkpoint(kind, source, tmp_path):
    make(kind, tmp_path / "dst", source)
    if kind == "checkpoint":
        (tmp_path / "dst" / "old").write_text("of the old one")
    converts(source, tmp_path / "dst", overwrite=True)
    assert not (tmp_path / "dst" / "old").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]


def test_failed_overwriting_keeps_the_old(source, tmp_path, capsys):
    (source / "params.kernel" / "0.0").unlink()
    shutil.copytree(source, tmp_path / "dst")
    refused(source, tmp_path / "dst", CorruptError, "not stored", overwrite=True)
    refused_by_command(capsys, source, tmp_path / "dst", "not stored", args=["--overwrite"])


def test_target_is_the_source(source, tmp_path, capsys):
    (tmp_path / "link").symlink_to(source)
    for name in ("src", "../" + tmp_path.name + "/src", "link"):
        text = f"the target {str(tmp_path / name)!r} is the source itself; choose another target"
        for overwrite in (False, True):
            refused(source, tmp_path / name, StorageError, text, overwrite=overwrite)
        refused_by_command(capsys, source, tmp_path / name, text)


def test_target_inside_the_source(source, tmp_path, capsys):
    (tmp_path / "link").symlink_to(source)
    for target in (source / "dst", source / "params.kernel" / "dst", tmp_path / "link" / "dst"):
        text = f"the target {str(target)!r} is inside the source {str(source)!r}; choose a target outside of it"
        refused(source, target, StorageError, text)
        refused_by_command(capsys, source, target, text)


def test_source_inside_the_target(source, tmp_path, capsys):
    text = (
        f"the source {str(source)!r} is inside the target {str(tmp_path)!r}; choose another target"
    )
    refused(source, tmp_path, StorageError, text, overwrite=True)
    refused_by_command(capsys, source, tmp_path, text, args=["--overwrite"])


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "'' is no path; expected the folder to write"),
        ("a\0b", "is no path; expected the folder to write"),
        ("file://a", "should be file:// with an absolute path"),
        ("a\\b", "holds a backslash or bytes that are not UTF-8"),
        (b"\xff", "bytes that are not UTF-8"),
        (None, "the target is None; expected a path"),
        (".", "exists already"),
        ("/", "is inside the target"),
    ],
)  # fmt: skip
def test_target_is_no_usable_path(target, text, source, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with nothing_changes(source, tmp_path / "here"), pytest.raises(StorageError) as caught:
        reshard.convert(source, target)
    assert text in str(caught.value)


def test_paths_as_urls(source, tmp_path):
    converts(source, tmp_path / "dst")
    reshard.convert(f"file://{source}", f"file://{tmp_path}/dst2")
    assert reshard.verify(tmp_path / "dst", tmp_path / "dst2").differences == 0
    refused(f"file://{source}", f"file://{source}/dst", StorageError, "is inside the source")


def test_target_name_is_too_long(source, tmp_path, capsys):
    for name in ("n" * 250, "n" * 300):
        text = "File name too long; choose a shorter name"
        refused(source, tmp_path / name, StorageError, text)
        refused_by_command(capsys, source, tmp_path / name, text)


def test_a_file_where_a_folder_should_be(source, tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    target = tmp_path / "file" / "deeper" / "dst"
    text = f"the target {str(target)!r} lies below {str(tmp_path / 'file')!r}, which should be a folder but is none"
    refused(source, target, StorageError, text)
    refused_by_command(capsys, source, target, text)
    assert (tmp_path / "file").read_text() == "precious"
