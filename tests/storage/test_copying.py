"""Blocks that two files share: what is asked of the file system, and what happens where it refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from awscrt.checksums import crc32c
from safetensors.numpy import save_file

import reshard
from reshard.engine.write import sinks
from reshard.errors import CorruptError, VerificationError
from reshard.storage import copying
from reshard.storage.copying import CLONE_BYTES, cloned
from tests.orbax_trees import put, save_pytree

DATA = np.random.default_rng(0).bytes(CLONE_BYTES + 8192)


class Sharing:
    """Stands for a file system that shares blocks: it copies them.

    Attributes:
        asked: offset and number of bytes, and the offset in the target, of each request.
        flips: whether the last byte but seven comes out wrong.
    """

    def __init__(self, *, flips: bool = False) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.flips = flips

    def __call__(self, fd: int, request: int, argument: bytes) -> int:
        assert request == 0x4020940D
        source, offset, nbytes, at = struct.unpack("=qQQQ", argument)
        data = bytearray(os.pread(source, nbytes, offset))
        if len(data) < nbytes:
            raise OSError(errno.EINVAL, "Invalid argument")
        data[-8] ^= self.flips
        os.pwrite(fd, data, at)
        self.asked.append((offset, nbytes, at))
        return 0


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "source").write_bytes(DATA)
    fd = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    yield fd
    os.close(fd)


def test_the_sum_is_that_of_what_the_new_file_has(
    tmp_path: Path, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Sharing())
    source, target = tmp_path / "source", tmp_path / "target"
    found = cloned(str(source), 4096, CLONE_BYTES, out, str(target), 8192)
    assert target.read_bytes() == bytes(8192) + DATA[4096:][:CLONE_BYTES]
    assert found == crc32c(DATA[4096:][:CLONE_BYTES])
    monkeypatch.setattr(fcntl, "ioctl", Sharing(flips=True))
    assert cloned(str(source), 4096, CLONE_BYTES, out, str(target), 8192) != found


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_refusal_is_no_error(
    tmp_path: Path, out: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", refused)
    ends = (str(tmp_path / "source"), 0, CLONE_BYTES, out, str(tmp_path / "target"))
    assert cloned(*ends) is None
    assert (tmp_path / "target").read_bytes() == b""


def test_what_is_short_or_gone_or_in_a_bucket_is_not_asked_for(
    tmp_path: Path, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = Sharing()
    monkeypatch.setattr(fcntl, "ioctl", sharing)
    target = str(tmp_path / "target")
    assert cloned(str(tmp_path / "source"), 0, CLONE_BYTES - 1, out, target) is None
    assert cloned(str(tmp_path / "nothing"), 0, CLONE_BYTES, out, target) is None
    assert cloned("gs://bucket/source", 0, CLONE_BYTES, out, target) is None
    assert (
        cloned(str(tmp_path / "source"), 8193, CLONE_BYTES, out, target) is None
    )  # it ends before
    assert sharing.asked == []


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with chunks of zstd that are large enough."""
    monkeypatch.setattr(copying, "CLONE_BYTES", 1 << 10)
    values = np.random.default_rng(0).integers(0, 1 << 30, (64, 64)).astype(np.int32)
    tree = {"w": put(values)}
    return Path(save_pytree(tmp_path / "c", tree, use_ocdbt=False, use_zarr3=False))


def test_chunks_that_are_copied_share_blocks(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = Sharing()
    monkeypatch.setattr(fcntl, "ioctl", sharing)
    first = reshard.convert(packed, tmp_path / "first", compression="keep", workers=1)
    assert {t.strategy for t in first.tensors} == {"copy"}
    again = reshard.convert(tmp_path / "first", tmp_path / "again", compression="keep", workers=1)
    assert {t.strategy for t in again.tensors} == {"copy"}
    without, with_sum = np.split(np.array(sharing.asked), 2)
    assert len(without)
    assert (with_sum - without == [0, 4, 0]).all()  # a CRC32C was added
    assert reshard.verify(packed, tmp_path / "again").differences == 0


def test_a_clone_that_is_wrong_is_seen_where_a_checksum_is_stored(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reshard.convert(packed, tmp_path / "first", compression="keep")
    monkeypatch.setattr(fcntl, "ioctl", Sharing(flips=True))
    with pytest.raises(CorruptError, match=r"tensor 'w', chunk \[\d, \d\]: its bytes do not have"):
        reshard.convert(tmp_path / "first", tmp_path / "again", compression="keep")
    assert not (tmp_path / "again").exists()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A checkpoint with raw chunks that are moved in bands, and the digest of its tensor."""
    values = np.random.default_rng(0).integers(0, 1 << 30, (1024, 1024)).astype(np.int32)
    first = Path(save_pytree(tmp_path / "c", {"w": put(values)}, use_ocdbt=False))
    reshard.convert(first, tmp_path / "raw", compression="none")
    return tmp_path / "raw"


def test_raw_chunks_share_blocks_and_are_read_from_the_target(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = Sharing()
    monkeypatch.setattr(fcntl, "ioctl", sharing)
    written: list[int] = []
    monkeypatch.setattr(sinks, "write_runs", lambda *_: written.append(1))
    made = reshard.convert(raw, tmp_path / "t", compression="none", workers=1)
    assert {t.strategy for t in made.tensors} == {"scatter"}
    assert sum(nbytes for _, nbytes, _ in sharing.asked) >= 4 << 20
    assert not written
    assert reshard.verify(raw, tmp_path / "t").differences == 0


def test_blocks_that_are_not_those_of_the_source_are_written_over(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's checksum does not fit what is read from the target, so that the source is read and written after all."""
    sharing = Sharing(flips=True)
    monkeypatch.setattr(fcntl, "ioctl", sharing)
    reshard.convert(raw, tmp_path / "t", compression="none")
    assert sharing.asked
    assert reshard.verify(raw, tmp_path / "t").differences == 0


def test_wrong_blocks_of_a_source_without_checksums_differ_from_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, values = tmp_path / "c.safetensors", np.ones((1024, 1024), np.int32)
    save_file({"w": values}, tmp_path / "model.safetensors")
    reshard.convert(tmp_path / "model.safetensors", source, to="safetensors")
    monkeypatch.setattr(fcntl, "ioctl", sharing := Sharing(flips=True))
    with pytest.raises(VerificationError, match="'w': what was written has digest"):
        reshard.convert(source, tmp_path / "t", to="safetensors")
    assert sharing.asked
    assert not (tmp_path / "t").exists()


def test_raw_chunks_that_nothing_proves_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = Sharing()
    monkeypatch.setattr(fcntl, "ioctl", sharing)
    save_file({"w": np.ones((1024, 1024), np.int32)}, tmp_path / "model.safetensors")
    reshard.convert(tmp_path / "model.safetensors", tmp_path / "t", to="safetensors")
    assert sharing.asked == []
    assert reshard.verify(tmp_path / "model.safetensors", tmp_path / "t").differences == 0
