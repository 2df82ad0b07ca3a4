"""Chunks of TensorStore decode to their arrays, read in any mix of steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.errors import CorruptError
from reshard.formats.codecs import (
    is_seekable,
    open_fill,
    open_stream,
)
from reshard.formats.contents import Encoding, Extent
from reshard.formats.orbax.find_arrays import tensorstore_encoding
from tests.campaigns import examples
from tests.formats.codecs.chunk_cases import (
    WHERE,
    bf16_array,
    decode,
    each_case,
    f4_array,
    placed,
    stored,
    written,
)
from tests.open_files import open_files


@each_case
@pytest.mark.parametrize("make", [f4_array, bf16_array])
def test_chunks_of_tensorstore_decode_to_their_array(case, make, tmp_path):
    array = make()
    encoding, extent = written(case, array, tmp_path)
    assert decode(encoding, extent, array.nbytes) == array.tobytes()


@each_case
@settings(max_examples=examples(15))
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


@each_case
def test_no_descriptor_is_left_open(case, tmp_path):
    array = f4_array((64, 65))
    encoding, extent = written(case, array, tmp_path)
    stream = open_stream(encoding, extent, array.nbytes, WHERE)
    assert open_files(tmp_path) == 1
    stream.close()
    stream.close()
    for length in (extent.length, extent.length - 1, 2):
        for _ in range(3):
            try:
                decode(encoding, Extent(extent.path, 6, length), array.nbytes)
            except CorruptError:
                continue
    assert open_files(tmp_path) == 0


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
    with pytest.raises(ValueError, match="not a multiple of a fill of 7"):
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
    metadata = (tmp_path / "b/.zarray").read_bytes()
    encoding = tensorstore_encoding(metadata, ".zarray", (40, 70), True, WHERE)
    chunk = tmp_path / "b/2.0"
    nbytes = 40 * 70 * 4

    def opened(decoded_bytes=nbytes, dtype="float32"):
        extent = Extent(str(chunk), 0, chunk.stat().st_size)
        return open_stream(encoding, extent, decoded_bytes, WHERE, inside=(20, 70), dtype=dtype)

    stream = opened()
    out = np.ones((40, 70), np.float32)
    stream.skip(2 * 280)
    stream.readinto(memoryview(out[2:]).cast("B"))
    assert stream.close_checked()
    assert (out[2:20] == array[82:]).all()
    assert not out[20:].any()
    with pytest.raises(
        CorruptError,
        match=r"TensorStore decodes 11,200 bytes of float32, but 2,800 of int8 are expected",
    ):
        opened(40 * 70, "int8")
    whole = chunk.read_bytes()
    for broken in (b"garbage", b"", whole[: len(whole) // 2], whole + b"x"):
        chunk.write_bytes(broken)
        with pytest.raises(CorruptError, match=r"chunk \(0, 1\): TensorStore cannot decode it: "):
            opened()
    chunk.write_bytes(bytes(2 << 20))
    with pytest.raises(
        CorruptError,
        match=r"2,097,152 bytes should decode to 11,200, but a chunk of that size takes at most 1,060,476",
    ):
        opened()
