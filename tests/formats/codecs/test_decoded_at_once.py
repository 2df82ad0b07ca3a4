"""Chunks that are decoded at once: the same bytes and the same errors as in a stream, and their memory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zstandard

from reshard.errors import CorruptError
from reshard.formats.codecs import (
    decoder_bytes,
    encode_chunk,
    encoded_room,
    open_stream,
)
from reshard.formats.contents import Encoding, Extent
from tests.formats.codecs.decoding import growth

WHERE = "tensor 'a/b', chunk (0, 1)"
NBYTES = 6 << 20
ZSTD = Encoding("zstd", 3)
ZSTD_CRC = Encoding("zstd", 3, checksum=True)
ENCODINGS = [
    ZSTD,
    ZSTD_CRC,
    Encoding("zstd", None),
    Encoding(),
    Encoding(checksum=True),
    Encoding("gzip", 1),
    Encoding("blosc", spec='{"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}'),
]


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(NBYTES // 4).astype(np.float32)


def placed(data: bytes, folder: Path) -> Extent:
    (folder / "data").write_bytes(b"before" + data + b"after")
    return Extent(str(folder / "data"), 6, len(data))


def decode(encoding: Encoding, extent: Extent, nbytes: int = NBYTES) -> bytes:
    data = bytearray(nbytes)
    memory = memoryview(bytearray(encoded_room(encoding, nbytes)))
    with closing(open_stream(encoding, extent, nbytes, WHERE, encoded=memory)) as stream:
        stream.readinto(memoryview(data))
        assert stream.close_checked()
    return bytes(data)


def encoded(values: np.ndarray, encoding: Encoding = ZSTD) -> bytes:
    return b"".join(encode_chunk(encoding, values.data))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_all_of_a_chunk_is_what_it_is_in_a_stream(encoding, values, tmp_path):
    extent = placed(encoded(values, encoding), tmp_path)
    assert decode(encoding, extent) == values.tobytes()


@pytest.mark.parametrize("sized", [True, False], ids=["with its size", "without"])
def test_a_frame_without_its_size_decodes_too(sized, values, tmp_path):
    frame = zstandard.ZstdCompressor(write_content_size=sized).compress(values.tobytes())
    assert decode(ZSTD, placed(frame, tmp_path)) == values.tobytes()


@pytest.mark.parametrize("encoding", [ZSTD, ZSTD_CRC], ids=str)
@pytest.mark.parametrize("lost", [1, 4, 5, 9, 100_000])
def test_a_chunk_cut_off_is_corrupt(encoding, lost, values, tmp_path):
    data = encoded(values, encoding)
    with pytest.raises(CorruptError, match=r"tensor 'a/b', chunk \(0, 1\): .*restore it"):
        decode(encoding, placed(data[:-lost], tmp_path))


def test_a_chunk_cut_off_without_checksums_says_how_far_it_goes(values, tmp_path):
    frame = zstandard.ZstdCompressor(write_checksum=False).compress(values.tobytes())
    with pytest.raises(
        CorruptError, match=r"its encoded bytes end after \d+ of 6291456 decoded bytes"
    ):
        decode(ZSTD, placed(frame[:-1], tmp_path))


def test_what_follows_is_corrupt(values, tmp_path):
    data = encoded(values)
    with pytest.raises(CorruptError, match="5 bytes follow the end of its zstd frame"):
        decode(ZSTD, placed(data + b"12345", tmp_path))
    with pytest.raises(CorruptError, match=f"{len(data)} bytes follow the end of its zstd frame"):
        decode(ZSTD, placed(data + data, tmp_path))


@pytest.mark.parametrize("place", [20, 1 << 20, -5, -1])
def test_a_flipped_byte_is_corrupt(place, values, tmp_path):
    for encoding in ZSTD, ZSTD_CRC:
        data = bytearray(encoded(values, encoding))
        data[place] ^= 4
        with pytest.raises(CorruptError):
            decode(encoding, placed(bytes(data), tmp_path))


@pytest.mark.parametrize("off", [-4, 4])
def test_a_chunk_of_another_size_is_corrupt(off, values, tmp_path):
    extent = placed(encoded(values), tmp_path)
    with pytest.raises(CorruptError, match="should decode to"):
        decode(ZSTD, extent, NBYTES + off)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(values.tobytes())
    with pytest.raises(CorruptError):
        decode(ZSTD, placed(frame, tmp_path), NBYTES + off)


def test_what_gains_nothing_has_no_price():
    for encoding in ENCODINGS:
        room = encoded_room(encoding, NBYTES)
        assert (room > NBYTES) is (encoding.compressor == "zstd")
    assert 1 << 30 < encoded_room(ZSTD, 1 << 30) < (1 << 30) + (8 << 20)


@pytest.mark.parametrize("encoding", [ZSTD, ZSTD_CRC], ids=str)
@pytest.mark.parametrize("sized", [True, False], ids=["with its size", "without"])
def test_decoding_at_once_stays_within_its_price(encoding, sized, values, tmp_path):
    nbytes = 4 * NBYTES
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=sized)
    frame = compressor.compress(np.tile(values, 4).tobytes())
    data = frame if not encoding.checksum else _with_crc(frame)
    found, error = growth(encoding, data, nbytes, tmp_path, at_once=True)
    assert error == ""
    assert found <= price(encoding, nbytes) + (2 << 20)


def test_a_chunk_far_longer_than_what_it_holds_is_not_read_at_once(values, tmp_path):
    """It is refused for what follows the frame, in the memory that was planned."""
    data = encoded(values) + bytes(64 << 20)
    found, error = growth(ZSTD, data, NBYTES, tmp_path, at_once=True)
    assert error == "CorruptError"
    assert found <= price(ZSTD, NBYTES) + (2 << 20)


def price(encoding: Encoding, nbytes: int) -> int:
    return decoder_bytes(encoding, nbytes) + encoded_room(encoding, nbytes)


def _with_crc(frame: bytes) -> bytes:
    from awscrt.checksums import crc32c

    return frame + crc32c(frame).to_bytes(4, "little")
