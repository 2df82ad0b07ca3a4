"""Pass-through: errors name the file in which they occur."""

from __future__ import annotations

import errno
import os
import re

import numpy as np
import pytest
from awscrt.checksums import crc32c
from msgspec.structs import replace

import reshard
from reshard.engine.movers.passthrough import copy_range
from reshard.errors import CorruptError, StorageError, VerificationError
from reshard.formats.contents import Extent
from reshard.formats.file_map import Place
from reshard.formats.orbax import write_files
from tests.orbax_trees import put, save_pytree


@pytest.fixture
def files(tmp_path):
    """A source of 64 bytes and a target."""
    (tmp_path / "source").write_bytes(bytes(range(64)))
    out = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    yield tmp_path, out
    os.close(out)


def failing(*_):
    raise OSError(errno.EIO, "Input/output error")


def test_a_range_is_copied_and_summed_up(files):
    folder, out = files
    crc = copy_range(Extent(str(folder / "source"), 8, 50), out, str(folder / "target"))
    assert crc == crc32c(bytes(range(8, 58)))
    assert (folder / "target").read_bytes() == bytes(range(8, 58))


@pytest.mark.parametrize(
    ("call", "said"), [("pread", "read '{}/source'"), ("pwrite", "write '{}/target'")]
)
def test_the_file_that_fails_is_named(files, monkeypatch, call, said):
    folder, out = files
    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError) as caught:
        copy_range(Extent(str(folder / "source"), 0, 64), out, str(folder / "target"))
    assert str(caught.value).startswith(f"cannot {said.format(folder)}: Input/output error")


def test_a_source_that_is_too_short_is_corrupt(files):
    folder, out = files
    with pytest.raises(
        CorruptError, match=r"source' ends inside a chunk: expected 64 bytes from offset 8"
    ):
        copy_range(Extent(str(folder / "source"), 8, 64), out, str(folder / "target"))


@pytest.fixture
def packed(tmp_path):
    """A checkpoint of which every chunk is one zstd frame without a checksum."""
    values = np.random.default_rng(0).integers(0, 9, (64, 64)).astype(np.int32)
    tree = {"w": put(values, "data"), "zeros": put(np.zeros(4, np.float32))}
    return save_pytree(tmp_path / "c", tree, use_ocdbt=False, use_zarr3=False)


@pytest.mark.parametrize("ocdbt", [False, True])
def test_a_checksum_is_added_on_the_way_and_then_kept(packed, tmp_path, ocdbt):
    first = reshard.convert(packed, tmp_path / "first", compression="keep", ocdbt=ocdbt)
    assert {t.strategy for t in first.tensors} == {"copy"}
    again = reshard.convert(tmp_path / "first", tmp_path / "again", compression="keep")
    assert {t.strategy for t in again.tensors} == {"copy"}
    for chunk in (packed / "w").glob("[0-9]*"):
        data = chunk.read_bytes()
        there = (tmp_path / "again" / "w" / "c" / chunk.name.replace(".", "/")).read_bytes()
        assert there == data + crc32c(data).to_bytes(4, "little")
    assert reshard.verify(packed, tmp_path / "again").differences == 0
    assert {t.status for t in reshard.verify(tmp_path / "again").tensors} == {"checksum"}


def test_a_checksum_that_does_not_fit_is_not_passed_on(packed, tmp_path):
    reshard.convert(packed, tmp_path / "first", compression="keep")
    chunk = next(p for p in (tmp_path / "first" / "w" / "c").rglob("*") if p.is_file())
    data = bytearray(chunk.read_bytes())
    data[-6] ^= 1
    chunk.write_bytes(bytes(data))
    with pytest.raises(
        CorruptError, match=r"tensor 'w', chunk \[\d, 0\]: its bytes do not have the CRC32C"
    ):
        reshard.convert(tmp_path / "first", tmp_path / "again", compression="keep")


@pytest.mark.parametrize(
    "places", [lambda file: (Place(file, 0),), lambda file: (Place(file), Place("too"))]
)
def test_an_encoded_chunk_is_not_put_into_a_shared_file_or_several(
    packed, tmp_path, monkeypatch, places
):
    """No format has such places for chunks whose size is known only once they are written."""
    usual = write_files.plan_files

    def planned(*given):
        files = usual(*given)
        return replace(files, places=lambda *of: places(files.places(*of)[0].file))

    monkeypatch.setattr(write_files, "plan_files", planned)
    with pytest.raises(VerificationError) as caught:
        reshard.convert(packed, tmp_path / "target", compression="keep")
    assert re.fullmatch(
        r"'\w+': chunk \[\d+(, \d+)?\] was to be copied as it is to a place in a shared file, or to several; this is a "
        r"defect of the program, please report it with the plan",
        str(caught.value),
    )
    assert not (tmp_path / "target").exists()
