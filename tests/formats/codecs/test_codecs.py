from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.base import Encoding, Extent
from reshard.formats.codecs import (
    decoder_bytes,
    encode_chunk,
    encoder_bytes,
    is_seekable,
    open_fill,
    open_stream,
)
from reshard.geometry.box import Box
from tests.formats.codecs.decoding import growth

WHERE = "tensor 'a/b', chunk (0, 1)"
SHAPE = (300, 701)


def bf16_array(shape=SHAPE):
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def f4_array(shape=SHAPE):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def zarr2(compressor):
    return "zarr", lambda a: {
        "shape": a.shape,
        "chunks": a.shape,
        "dtype": "bfloat16" if a.dtype == ml_dtypes.bfloat16 else a.dtype.str,
        "compressor": compressor,
    }


def zarr3(*codecs):
    return "zarr3", lambda a: {
        "shape": a.shape,
        "data_type": a.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": a.shape}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs],
    }


def blosc(cname, shuffle, blocksize=0, clevel=5):
    return {
        "id": "blosc",
        "cname": cname,
        "clevel": clevel,
        "shuffle": shuffle,
        "blocksize": blocksize,
    }


def blosc_case(*args):
    spec = blosc(*args)
    return zarr2(spec), Encoding("blosc", spec["clevel"], spec=json.dumps(spec))


CRC = {"name": "crc32c"}
ZSTD3 = {"name": "zstd", "configuration": {"level": 3}}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
CASES = {
    "zarr2-raw": (zarr2(None), Encoding()),
    "zarr2-zstd": (zarr2({"id": "zstd", "level": 1}), Encoding("zstd", 1)),
    "zarr2-zstd-22": (zarr2({"id": "zstd", "level": 22}), Encoding("zstd", 22)),
    "zarr2-gzip": (zarr2({"id": "gzip", "level": 4}), Encoding("gzip", 4)),
    "zarr2-zlib": (zarr2({"id": "zlib", "level": 1}), Encoding("gzip", 1)),
    "zarr2-lz4": blosc_case("lz4", 1),
    "zarr2-lz4-unshuffled": blosc_case("lz4", 0),
    "zarr2-lz4-bits": blosc_case("lz4", 2, 10_000),
    "zarr2-lz4hc": blosc_case("lz4hc", 1, 4096),
    "zarr2-blosclz": blosc_case("blosclz", 1, 1 << 16),
    "zarr2-blosc-zlib": blosc_case("zlib", 2),
    "zarr2-blosc-zstd": blosc_case("zstd", 1, 0, 9),
    "zarr2-blosc-big-blocks": blosc_case("zstd", 2, 1 << 22),
    "zarr3-raw": (zarr3(), Encoding()),
    "zarr3-crc": (zarr3(CRC), Encoding(checksum=True)),
    "zarr3-zstd": (zarr3(ZSTD3), Encoding("zstd", 3)),
    "zarr3-zstd-crc": (zarr3(ZSTD3, CRC), Encoding("zstd", 3, checksum=True)),
    "zarr3-gzip": (zarr3(GZIP), Encoding("gzip", 5)),
    "zarr3-gzip-crc": (zarr3(GZIP, CRC), Encoding("gzip", 5, checksum=True)),
}
each_case = pytest.mark.parametrize("case", CASES)


def store_of(case, array, path):
    driver, metadata = CASES[case][0]
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": metadata(array),
    }
    return ts.open(spec, create=True).result()


def chunk_file(case, path):
    return path / ("0.0" if case.startswith("zarr2") else "c/0/0")


def written(case, array, path):
    """A chunk by TensorStore, placed in the middle of another file: its encoding and extent."""
    store_of(case, array, path / case).write(array).result()
    data = chunk_file(case, path / case).read_bytes()
    return CASES[case][1], placed(data, path)


def placed(data, path):
    file = path / "data"
    file.write_bytes(b"before" + data + b"after")
    return Extent(str(file), 6, len(data))


def stored(extent):
    return Path(extent.path).read_bytes()[extent.offset : extent.offset + extent.length]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def decode(encoding, extent, nbytes, step=100_003):
    data = bytearray(nbytes)
    with closing(open_stream(encoding, extent, nbytes, WHERE)) as stream:
        for at in range(0, nbytes, step):
            stream.readinto(memoryview(data)[at : at + step])
        assert stream.close_checked()
    return bytes(data)


@each_case
@pytest.mark.parametrize("make", [f4_array, bf16_array])
def test_chunks_of_tensorstore_decode_to_their_array(case, make, tmp_path):
    array = make()
    encoding, extent = written(case, array, tmp_path)
    assert decode(encoding, extent, array.nbytes) == array.tobytes()


@each_case
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mix_of_reads_and_skips(case, data, tmp_path_factory):
    array = f4_array((40, data.draw(st.integers(1, 3000))))
    encoding, extent = written(case, array, tmp_path_factory.mktemp("mix"))
    if data.draw(st.booleans()):
        inline = stored(extent)
        extent = Extent("index", 0, len(inline), inline)
    stream, expected, at = open_stream(encoding, extent, array.nbytes, WHERE), array.tobytes(), 0
    skipped = False
    while at < array.nbytes and data.draw(st.integers(0, 9)):
        step = data.draw(st.integers(0, array.nbytes - at))
        if data.draw(st.booleans()):
            stream.skip(step)
            skipped |= step > 0
        else:
            piece = bytearray(step)
            stream.readinto(memoryview(piece))
            assert piece == expected[at : at + step]
        at += step
    whole = at == array.nbytes and not skipped
    assert stream.close_checked() is (whole or not encoding.checksum or not is_seekable(encoding))


@pytest.mark.parametrize("case", [c for c in CASES if c != "zarr2-zlib"])
@pytest.mark.parametrize("make", [f4_array, bf16_array])
def test_tensorstore_reads_encoded_chunks(case, make, tmp_path):
    array = make()
    encoding = CASES[case][1]
    store = store_of(case, array, tmp_path / case)
    data = b"".join(encode_chunk(encoding, array.view(f"u{array.itemsize}").data))
    file = chunk_file(case, tmp_path / case)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    assert store.read().result().tobytes() == array.tobytes()
    assert decode(encoding, placed(data, tmp_path), array.nbytes) == array.tobytes()


def test_raw_chunks_are_encoded_without_a_copy():
    data = memoryview(bytearray(b"12345678"))
    parts = encode_chunk(Encoding(checksum=True), data)
    assert parts[0].obj is data.obj
    assert int.from_bytes(parts[1], "little") == 0x6087809A  # CRC32C of 12345678


def test_what_cannot_be_encoded_is_refused_by_name():
    with pytest.raises(
        FormatError, match="cannot be written with codec 'tensorstore'; choose none"
    ):
        encode_chunk(Encoding("tensorstore"), memoryview(b"x"))


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


def test_our_zstd_frames_carry_a_checksum(tmp_path):
    array = np.arange(1000, dtype=np.int32) // 7
    good = b"".join(encode_chunk(Encoding("zstd", 1), array.data))
    for at in range(4, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(CorruptError):
            decode(Encoding("zstd", 1), placed(bytes(bad), tmp_path), array.nbytes)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
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
    with pytest.raises(CorruptError, match="should hold 5000 bytes, but says 100000"):
        decode(Encoding("zstd", 3), placed(frame, tmp_path), 5000)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    with pytest.raises(CorruptError, match="decodes to more than 5000 bytes"):
        decode(Encoding("zstd", 3), placed(unsized, tmp_path), 5000)
    with pytest.raises(CorruptError, match="decodes to more than 5000 bytes"):
        decode(Encoding("gzip"), placed(zlib.compress(data), tmp_path), 5000)


def test_large_frames_in_many_blocks_end_where_they_end(tmp_path):
    data = np.random.default_rng(0).integers(0, 9, 3_000_000, np.uint8).tobytes()
    for sized in (True, False):
        frame = zstandard.ZstdCompressor(write_checksum=sized, write_content_size=sized).compress(
            data
        )
        encoding = Encoding("zstd", 3)
        assert decode(encoding, placed(frame, tmp_path), len(data)) == data
        with pytest.raises(CorruptError, match="its encoded bytes end after"):
            decode(encoding, placed(frame[:-1], tmp_path), len(data))


def test_a_window_beyond_the_planned_one_is_refused(tmp_path):
    data = np.random.default_rng(0).bytes(100) * 60_000
    parameters = zstandard.ZstdCompressionParameters(window_log=23, compression_level=1)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    with pytest.raises(
        CorruptError, match="needs a window of 6000000 bytes, but its recorded level"
    ):
        decode(Encoding("zstd", 1), placed(frame, tmp_path), len(data))
    assert decode(Encoding("zstd", None), placed(frame, tmp_path), len(data)) == data


def test_blosc_headers_that_lie_are_refused(tmp_path):
    array = f4_array((300, 300))
    encoding, extent = written("zarr2-lz4", array, tmp_path)
    good = stored(extent)

    def changed(at, value):
        bad = bytearray(good)
        bad[at : at + 4] = struct.pack("<I", value)
        return placed(bytes(bad), tmp_path)

    for at, value, message in [
        (0, 5, "has format 5, but 2 is expected"),
        (4, 1 << 31, "should hold 360000 bytes, but says 2147483648"),
        (8, 1, "blocks have 1 bytes, but 4096 to 360000 are expected"),
        (8, 1 << 30, "blocks have 1073741824 bytes"),
        (12, 99, "says that it has 99 bytes"),
        (16, 1 << 31, "lie outside"),
        (16, 3, "lie outside"),
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
    with pytest.raises(CorruptError, match="no chunk can lie there"):
        open_stream(Encoding(), Extent(extent.path, -1, 4), 4, WHERE)
    with pytest.raises(CorruptError, match="no chunk can lie there"):
        open_stream(Encoding(checksum=True), Extent(extent.path, 0, 3), 0, WHERE)
    with pytest.raises(CorruptError, match="its index carries 2 bytes"):
        open_stream(Encoding(), Extent("index", 0, 4, b"ab"), 4, WHERE)
    with pytest.raises(CorruptError, match="should hold 5 bytes, but has 4"):
        open_stream(Encoding(), extent, 5, WHERE)
    stream = open_stream(Encoding(), extent, 4, WHERE)
    with pytest.raises(CorruptError, match="holds 4 decoded bytes, but byte 5 is wanted"):
        stream.readinto(memoryview(bytearray(5)))
    stream.close()


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*nowhere: No such file.*check that"):
        open_stream(Encoding(), Extent(str(tmp_path / "nowhere"), 0, 4), 4, WHERE)
    with pytest.raises(StorageError, match="Is a directory"):
        decode(Encoding(), Extent(str(tmp_path), 0, 4), 4)


@each_case
def test_no_descriptor_is_left_open(case, tmp_path):
    array = f4_array((64, 65))
    encoding, extent = written(case, array, tmp_path)
    before = open_files()
    for length in (extent.length, extent.length - 1, 2):
        for _ in range(3):
            try:
                decode(encoding, Extent(extent.path, 6, length), array.nbytes)
            except CorruptError:
                continue
    stream = open_stream(encoding, extent, array.nbytes, WHERE)
    stream.close()
    stream.close()
    assert open_files() == before


@pytest.mark.parametrize("fill", [b"\0", b"\0\0\0\0", b"\1\2\3"])
def test_fill_streams(fill):
    stream = open_fill(fill, 36)
    out = bytearray(b"x" * 36)
    stream.readinto(memoryview(out)[:7])
    stream.skip(4)
    stream.readinto(memoryview(out)[11:])
    expected = bytearray((fill * 36)[:36])
    expected[7:11] = b"xxxx"
    assert out == expected
    assert stream.close_checked()
    with pytest.raises(ValueError, match="with 0 left"):
        stream.skip(1)


def test_long_fills_keep_their_phase():
    fill = bytes(range(1, 13))
    stream, expected = open_fill(fill, 120_000), fill * 10_000
    out = bytearray(120_000)
    for start, stop in [(0, 5), (5, 50_005), (50_005, 119_999), (119_999, 120_000)]:
        stream.readinto(memoryview(out)[start:stop])
    assert out == expected
    with pytest.raises(ValueError, match="no multiple of a fill of 7"):
        open_fill(b"1234567", 20)


def test_what_only_tensorstore_decodes(tmp_path):
    array = f4_array((100, 70))
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(tmp_path / "b")},
        "metadata": {
            "shape": array.shape, "chunks": (40, 70), "dtype": "<f4",
            "compressor": {"id": "bz2", "level": 1},
        },
    }  # fmt: skip
    ts.open(spec, create=True).result().write(array).result()
    del spec["metadata"]
    encoding = Encoding("tensorstore", spec=json.dumps(spec))
    extent = Extent(str(tmp_path / "b"), 0, 0)
    box = Box((80, 0), (120, 70))  # the last chunk is padded
    stream = open_stream(encoding, extent, 40 * 70 * 4, WHERE, box=box, dtype="float32")
    out = np.ones((40, 70), np.float32)
    stream.skip(2 * 280)
    stream.readinto(memoryview(out[2:]).cast("B"))
    assert stream.close_checked()
    assert (out[2:20] == array[82:]).all()
    assert not out[20:].any()
    with pytest.raises(CorruptError, match=r"TensorStore cannot read .* holds float32, not int8"):
        open_stream(encoding, extent, 40 * 70, WHERE, box=box, dtype="int8")
    with pytest.raises(CorruptError, match=r"reads 11200 bytes .* but 7 are expected"):
        open_stream(encoding, extent, 7, WHERE, box=box, dtype="float32")
    (tmp_path / "b/2.0").write_bytes(b"garbage")
    with pytest.raises(
        CorruptError, match=r"chunk \(0, 1\): TensorStore cannot read \[80:120, 0:70\]"
    ):
        open_stream(encoding, extent, 40 * 70 * 4, WHERE, box=box, dtype="float32")


@pytest.mark.parametrize(
    "case",
    ["zarr2-raw", "zarr2-zstd", "zarr2-gzip", "zarr2-lz4", "zarr2-blosc-big-blocks", "zarr3-crc"],
)
def test_decoding_stays_within_its_price(case, tmp_path):
    encoding, nbytes = CASES[case][1], 64 << 20
    values = np.random.default_rng(0).integers(0, 50, nbytes // 4).astype(np.float32)
    if case in {"zarr2-gzip", "zarr2-blosc-big-blocks"}:  # slow to make
        values[nbytes // 64 :] = 1
    data = b"".join(encode_chunk(encoding, values.data))
    found, error = growth(encoding, data, nbytes, tmp_path)
    assert error == ""
    allowed = decoder_bytes(encoding, nbytes)
    assert found <= allowed + (2 << 20)
    assert allowed < 32 << 20


ENCODE = """
import json, sys
import numpy as np
from reshard.formats.base import Encoding
from reshard.formats.codecs import encode_chunk
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024
encoding, nbytes = json.loads(sys.argv[1])
encoding = Encoding(**encoding)
data = np.random.default_rng(0).integers(0, 1 << 32, nbytes // 4, np.uint32)
encode_chunk(encoding, data[:1024].data)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
parts = encode_chunk(encoding, data.data)
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize(
    "case",
    [
        "zarr3-crc",
        "zarr3-zstd-crc",
        "zarr2-gzip",
        "zarr2-lz4",
        "zarr2-blosc-zstd",
        "zarr2-blosc-big-blocks",
    ],
)
def test_encoding_stays_within_its_price(case):
    encoding, nbytes = CASES[case][1], 12 << 20
    argument = json.dumps([asdict(encoding), nbytes])
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, argument], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= encoder_bytes(encoding, nbytes) + (1 << 20)


def test_prices_are_arithmetic():
    assert decoder_bytes(Encoding(), 1 << 40) == 0
    assert decoder_bytes(Encoding("zstd", 1), 1 << 40) < 3 << 20
    assert decoder_bytes(Encoding("zstd", None), 1 << 40) > 8 << 20
    assert 1 << 27 < decoder_bytes(Encoding("zstd", 22), 1 << 40) < 1 << 28
    assert decoder_bytes(Encoding("tensorstore"), 1 << 20) > 1 << 20
    assert decoder_bytes(Encoding("blosc", spec='{"blocksize": 4194304}'), 1 << 30) > 4 << 20
    for compressor in ("zstd", "gzip", "blosc"):
        assert encoder_bytes(Encoding(compressor, 1), 1 << 20) > 1 << 20
    assert encoder_bytes(Encoding(), 1 << 30) < 64
