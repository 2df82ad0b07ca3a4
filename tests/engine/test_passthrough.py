"""Pass-through: what goes wrong is said of the file where it went wrong."""

from __future__ import annotations

import errno
import os

import pytest

from reshard.engine.passthrough import _copy_range
from reshard.errors import CorruptError, StorageError
from reshard.formats.base import Extent


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A source of 64 bytes and a target, where the kernel copies no ranges."""

    def unsupported(*_):
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", unsupported)
    (tmp_path / "source").write_bytes(bytes(range(64)))
    out = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    yield tmp_path, out
    os.close(out)


def failing(*_):
    raise OSError(errno.EIO, "Input/output error")


def test_a_range_is_copied_without_help_of_the_kernel(files):
    folder, out = files
    _copy_range(Extent(str(folder / "source"), 8, 50), out, str(folder / "target"))
    assert (folder / "target").read_bytes() == bytes(range(8, 58))


@pytest.mark.parametrize(
    ("call", "said"), [("pread", "read '{}/source'"), ("pwrite", "write '{}/target'")]
)
def test_the_file_that_fails_is_named(files, monkeypatch, call, said):
    folder, out = files
    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError) as caught:
        _copy_range(Extent(str(folder / "source"), 0, 64), out, str(folder / "target"))
    assert str(caught.value).startswith(f"cannot {said.format(folder)}: Input/output error")


def test_a_source_that_is_too_short_is_corrupt(files):
    folder, out = files
    with pytest.raises(
        CorruptError, match=r"source' ends inside a chunk: expected 64 bytes from offset 8"
    ):
        _copy_range(Extent(str(folder / "source"), 8, 64), out, str(folder / "target"))
