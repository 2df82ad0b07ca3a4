"""What the system refuses: no permission, no space."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import (
    StorageError,
)
from tests.robustness.bad_input.checking import (
    refused,
    refused_by_command,
)

NOBODY = 65534


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Without the rights of root, if this process has them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(saved: Mapping[str, Path]) -> Iterator[Path]:
    """A folder that every user may enter, with a source in it, after a first run loaded all code."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        shutil.copytree(saved["plain"], folder / "src")
        for words in (["convert", "--json"], ["convert"]):
            assert run([*words, str(folder / "src"), str(folder / "first")]) == 0
            shutil.rmtree(folder / "first")
        yield folder
    finally:
        shutil.rmtree(folder)


def test_no_permission_to_write(open_folder, capsys):
    (open_folder / "locked").mkdir()
    (open_folder / "locked").chmod(0o555)
    for target in (open_folder / "locked" / "dst", open_folder / "locked" / "deep" / "dst"):
        text = f"cannot create '{open_folder}/locked"
        remedy = "Permission denied; grant this user the permission"
        with ordinary_user():
            refused(open_folder / "src", target, StorageError, text, remedy)
            refused_by_command(capsys, open_folder / "src", target, text, remedy)


@pytest.mark.parametrize("name", [".", "_METADATA", "params.kernel/.zarray", "params.kernel/0.0"])
def test_no_permission_to_read(name, open_folder, capsys):
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    place, source, target = open_folder / "src" / name, open_folder / "src", open_folder / "out/dst"
    place.chmod(0)
    with ordinary_user():
        for attempt in ("api", "command"):
            if attempt == "api":
                with pytest.raises(StorageError) as caught:
                    reshard.convert(source, target)
                said = str(caught.value)
            else:
                assert run(["convert", str(source), str(target)]) == 1
                said = capsys.readouterr().err
            assert str(place) in said
            assert "Permission denied" in said
            assert list(target.parent.iterdir()) == []
    place.chmod(0o755)


def test_disk_is_too_small(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reshard.storage.local.store.free_bytes", lambda _: 1 << 10)
    texts = (
        f"'{tmp_path}/dst' needs 16.6 KiB, but its file system has only 1.00 KiB free",
        "(select, cast)",
    )
    refused(source, tmp_path / "dst", StorageError, *texts)
    refused_by_command(capsys, source, tmp_path / "dst", *texts)


@pytest.mark.usefixtures("limit_file_sizes")
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("ocdbt", [False, True])
def test_disk_becomes_full(compression, ocdbt, source, tmp_path, capsys):
    """The system refuses to write beyond a size; the database writer has files of its own."""
    texts = (
        ("cannot store chunk [0, 0] of 'table'", "make room there, or choose another target")
        if ocdbt
        else (f"{tmp_path}/.dst.reshard-partial", "File too large; raise the limit of file sizes")
    )
    refused(source, tmp_path / "dst", StorageError, *texts, compression=compression, ocdbt=ocdbt)
    args = ["--compression", compression, *(["--ocdbt"] if ocdbt else [])]
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=args)


@pytest.fixture(autouse=True)
def no_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is first imported on a full disk would leave a truncated .pyc to all later tests."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def limit_file_sizes(source: Path) -> Iterator[None]:  # noqa: ARG001 - made before
    """Once there is a source, no file may grow beyond 4 KiB (the table is larger)."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 10, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("call", ["pwrite", "write", "ftruncate", "fsync", "mkdir"])
@pytest.mark.parametrize("compression", ["none", "keep"])
def test_every_call_that_may_find_the_disk_full(call, compression, saved, tmp_path, monkeypatch):
    real, calls = getattr(os, call), []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    source = Path(shutil.copytree(saved["zstd"], tmp_path / "src"))
    monkeypatch.setattr(os, call, full)
    try:
        reshard.convert(source, tmp_path / "dst", compression=compression)
    except StorageError as error:
        assert "No space left on device; free space on that file system" in str(error)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]
    else:
        assert len(calls) <= 2
        monkeypatch.undo()
        assert reshard.verify(source, tmp_path / "dst").differences == 0
