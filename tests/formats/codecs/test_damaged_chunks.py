"""Damaged, cut and hostile chunks: each gives a clear error that names the chunk."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.codecs import (
    open_stream,
)
from reshard.formats.contents import Encoding, Extent
from tests.formats.codecs.chunk_cases import (
    CASES,
    WHERE,
    blosc,
    decode,
    each_case,
    f4_array,
    placed,
    stored,
    written,
)


@pytest.mark.parametrize("case", [c for c in CASES if c != "zarr2-raw" and c != "zarr3-raw"])
def test_a_chunk_cut_off_anywhere_is_corrupt(case, tmp_path):
    array = f4_array((64, 65))
    encoding, extent = written(case, array, tmp_path)
    for cut in {
        0,
        1,
        3,
        4,
        15,
        16,
        17,
        40,
        extent.length // 2,
        *range(extent.length - 9, extent.length),
    }:
        with pytest.raises(CorruptError, match=r"tensor 'a/b', chunk \(0, 1\): .*restore it"):
            decode(encoding, Extent(extent.path, extent.offset, cut), array.nbytes)


@each_case
def test_bytes_after_the_end_are_corrupt(case, tmp_path):
    array = f4_array((64, 65))
    encoding, extent = written(case, array, tmp_path)
    for extra in 1, 5:
        with pytest.raises(CorruptError, match=f"{extent.length + extra} bytes at offset 6"):
            decode(encoding, Extent(extent.path, 6, extent.length + extra), array.nbytes)


@each_case
@pytest.mark.parametrize("off", [-4, 4])
def test_a_chunk_of_another_size_is_corrupt(case, off, tmp_path):
    array = f4_array((64, 65))
    encoding, extent = written(case, array, tmp_path)
    with pytest.raises(CorruptError):
        decode(encoding, extent, array.nbytes + off)


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c][1].checksum])
def test_every_flipped_byte_is_found_where_there_is_a_checksum(case, tmp_path):
    array = f4_array((5, 7))
    encoding, extent = written(case, array, tmp_path)
    good = stored(extent)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        with pytest.raises(CorruptError):
            decode(encoding, placed(bytes(bad), tmp_path), array.nbytes)


@given(case=st.sampled_from(sorted(CASES)), seed=st.integers(0, 1 << 30), flips=st.integers(1, 20))
def test_garbage_gives_bytes_or_a_clear_error(case, seed, flips, tmp_path_factory):
    path = tmp_path_factory.mktemp("flip")
    array = f4_array((30, 50)) // 1
    encoding, extent = written(case, array, path)
    rng = np.random.default_rng(seed)
    bad = bytearray(stored(extent))
    for at in rng.integers(0, min(len(bad), 64 if seed % 2 else len(bad)), flips):
        bad[at] = rng.integers(256)
    try:
        assert len(decode(encoding, placed(bytes(bad), path), array.nbytes)) == array.nbytes
    except (CorruptError, FormatError) as error:
        assert WHERE in str(error)


def test_a_second_frame_and_a_bomb_are_refused(tmp_path):
    data = bytes(100_000)
    frame = zstandard.compress(data)
    with pytest.raises(CorruptError, match=f"{len(frame)} bytes follow the end of its zstd frame"):
        decode(Encoding("zstd", 3), placed(frame * 2, tmp_path), len(data))
    with pytest.raises(
        CorruptError, match="should decode to 5000 bytes, but its header says 100000"
    ):
        decode(Encoding("zstd", 3), placed(frame, tmp_path), 5000)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    with pytest.raises(CorruptError, match="decodes to more than 5000 bytes"):
        decode(Encoding("zstd", 3), placed(unsized, tmp_path), 5000)
    with pytest.raises(CorruptError, match="decodes to more than 5000 bytes"):
        decode(Encoding("gzip"), placed(zlib.compress(data), tmp_path), 5000)


def test_a_window_beyond_the_planned_one_is_refused(tmp_path):
    data = np.random.default_rng(0).bytes(100) * 60_000
    parameters = zstandard.ZstdCompressionParameters(window_log=23, compression_level=1)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    with pytest.raises(
        CorruptError, match="needs a window of 6000000 bytes, but its recorded level"
    ):
        decode(Encoding("zstd", 1), placed(frame, tmp_path), len(data))
    assert decode(Encoding("zstd", None), placed(frame, tmp_path), len(data)) == data


def test_false_blosc_headers_are_refused(tmp_path):
    array = f4_array((300, 300))
    encoding, extent = written("zarr2-lz4", array, tmp_path)
    good = stored(extent)

    def changed(at, value):
        bad = bytearray(good)
        bad[at : at + 4] = struct.pack("<I", value)
        return placed(bytes(bad), tmp_path)

    for at, value, message in [
        (0, 5, "has format 5, but 2 is expected"),
        (4, 1 << 31, "should decode to 360000 bytes, but its header says 2147483648"),
        (8, 1, "blocks have 1 bytes, but 4096 to 360000 are expected"),
        (8, 1 << 30, "blocks have 1073741824 bytes"),
        (12, 99, "says that it has 99 bytes"),
        (16, 1 << 31, "are outside"),
        (16, 3, "are outside"),
    ]:
        with pytest.raises(CorruptError, match=message):
            decode(encoding, changed(at, value), array.nbytes)


def test_snappy_is_refused_by_name(tmp_path):
    array = np.zeros((100, 100), np.float32)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(tmp_path / "s")},
        "metadata": {
            "shape": array.shape, "chunks": array.shape, "dtype": "<f4",
            "compressor": blosc("snappy", 1),
        },
    }  # fmt: skip
    ts.open(spec, create=True).result().write(array + 1).result()
    extent = placed((tmp_path / "s/0.0").read_bytes(), tmp_path)
    with pytest.raises(FormatError, match="blosc with snappy cannot be decoded here"):
        decode(Encoding("blosc"), extent, array.nbytes)


def test_a_wrong_checksum_names_both_values_and_the_place(tmp_path):
    extent = placed(b"abcdefgh" + b"\1\2\3\4", tmp_path)
    with pytest.raises(CorruptError) as error:
        decode(Encoding(checksum=True), extent, 8)
    assert str(error.value) == (
        f"{WHERE}: its CRC32C is recorded as 04030201, but its bytes give 0a9421b7 (stored in "
        f"{extent.path}, 12 bytes at offset 6); the source is damaged there: restore it from a "
        "replica or take another step"
    )


def test_extents_that_cannot_be(tmp_path):
    extent = placed(b"abcd", tmp_path)
    with pytest.raises(CorruptError, match="the file ends at byte 15"):
        decode(Encoding(), Extent(extent.path, 6, 1 << 20), 1 << 20)
    with pytest.raises(CorruptError, match="no chunk can be there"):
        open_stream(Encoding(), Extent(extent.path, -1, 4), 4, WHERE)
    with pytest.raises(CorruptError, match="no chunk can be there"):
        open_stream(Encoding(checksum=True), Extent(extent.path, 0, 3), 0, WHERE)
    with pytest.raises(CorruptError, match="its index contains 2 bytes"):
        open_stream(Encoding(), Extent("index", 0, 4, b"ab"), 4, WHERE)
    with pytest.raises(CorruptError, match="should have 5 bytes, but has 4"):
        open_stream(Encoding(), extent, 5, WHERE)
    stream = open_stream(Encoding(), extent, 4, WHERE)
    with pytest.raises(CorruptError, match="has 4 decoded bytes, but byte 5 is requested"):
        stream.readinto(memoryview(bytearray(5)))
    stream.close()


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*nowhere': No such file.*check the path"):
        open_stream(Encoding(), Extent(str(tmp_path / "nowhere"), 0, 4), 4, WHERE)
    with pytest.raises(FormatError, match="should be a plain file"):
        decode(Encoding(), Extent(str(tmp_path), 0, 4), 4)
