"""Positioned writes, bounded open files, and what an OSError becomes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import StorageError
from reshard.storage.local.files import OpenFiles, open_new, storage_errors, write_all


@given(st.binary(max_size=200), st.integers(0, 50), st.lists(st.integers(1, 40), min_size=1))
def test_short_writes_are_continued(tmp_path_factory, data, offset, lengths):
    path = tmp_path_factory.mktemp("short") / "file"
    real, sizes = os.pwrite, iter(lengths * 201)
    fd = open_new(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda f, d, o: real(f, d[: next(sizes)], o))
        write_all(fd, memoryview(data), offset, str(path))
    os.close(fd)
    assert path.read_bytes() == (bytes(offset) + data if data else b"")


def test_a_write_that_writes_nothing_is_an_error_not_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    fd = open_new(str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"cannot write .*the system wrote nothing and gave no"):
        write_all(fd, memoryview(b"data"), 0, str(tmp_path / "file"))
    os.close(fd)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "No space left on device; free space on that file system (or choose another)"),
        (errno.EDQUOT, "Disk quota exceeded; raise the quota or free space and run the same command again"),
        (errno.EACCES, "Permission denied; grant this user the permission"),
        (errno.EPERM, "Operation not permitted; grant this user the permission"),
        (errno.EROFS, "Read-only file system; choose a target on a writable file system"),
        (errno.ENOENT, "No such file or directory; check the path; something may have removed it"),
        (errno.EMFILE, "Too many open files; raise the limit of open files (ulimit -n)"),
        (errno.EIO, "Input/output error; the device reports a read or write error"),
        (errno.EFBIG, "File too large; raise the limit of file sizes (ulimit -f)"),
        (errno.ENAMETOOLONG, "File name too long; choose a shorter name"),
        (errno.ENOTDIR, "Not a directory; a part of the path is a file; choose another path"),
        (errno.ENODEV, "No such device; remove that cause and run again"),
    ],
)  # fmt: skip
def test_what_the_system_says_and_what_to_do(code, text):
    with pytest.raises(StorageError) as caught, storage_errors("write", "/some/where"):
        raise OSError(code, os.strerror(code))
    assert str(caught.value).startswith(f"cannot write '/some/where': {text}")
    assert isinstance(caught.value.__cause__, OSError)


def test_other_errors_pass():
    with pytest.raises(KeyError), storage_errors("write", "/some/where"):
        raise KeyError("a")


def open_below(folder: Path) -> int:
    """How many descriptors of this process are of files there; threads of other tests open and close others."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(fd.readlink())
    return sum(path.is_relative_to(folder) for path in found)


def test_the_oldest_file_is_closed_beyond_the_limit(tmp_path):
    with OpenFiles(str(tmp_path), limit=3) as files:
        for round_number in range(2):
            for name in "abcde":
                os.pwrite(files.fd(f"{name}/file"), b"xy", 2 * round_number)
                assert 0 < open_below(tmp_path) <= 3
        recent = files.fd("e/file")
        assert files.fd("c/file") == files.fd("c/file")
        files.fd("a/file")
        assert files.fd("e/file") == recent
    assert open_below(tmp_path) == 0
    assert all((tmp_path / name / "file").read_bytes() == b"xyxy" for name in "abcde")


def test_all_files_are_closed_even_if_closing_one_fails(tmp_path, monkeypatch):
    real = os.close

    def close(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        real(fd)
        if name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    text = rf"cannot close '{tmp_path}/b': Input/output error"
    with pytest.raises(StorageError, match=text), OpenFiles(str(tmp_path), limit=3) as files:
        for name in "abc":
            files.fd(name)
        monkeypatch.setattr(os, "close", close)
    monkeypatch.undo()
    assert open_below(tmp_path) == 0


@pytest.mark.parametrize("leads_to", ["precious", "none"])
def test_links_are_not_followed(leads_to, tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "file").symlink_to(tmp_path / leads_to)
    with pytest.raises(
        StorageError, match=r"cannot create .*remove the symbolic link in its place"
    ):
        open_new(str(tmp_path / "file"))
    assert (tmp_path / "precious").read_text() == "kept"
    assert not (tmp_path / "none").exists()


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StorageError, match=r"cannot create .*/file/below': Not a directory"):
        open_new(str(tmp_path / "file" / "below"))


def test_what_is_there_is_not_truncated(tmp_path):
    (tmp_path / "file").write_text("0123")
    fd = open_new(str(tmp_path / "file"))
    write_all(fd, memoryview(b"x"), 1, "file")
    os.close(fd)
    assert (tmp_path / "file").read_text() == "0x23"
