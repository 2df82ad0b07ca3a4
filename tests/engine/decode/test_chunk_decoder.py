"""Lanes: what is wanted of each band is the same, whether the chunk is streamed or decoded at once."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.decode.chunk_decoder import ChunkDecoder, StoredChunks, Whole
from reshard.engine.task import SourceChunk
from reshard.errors import CorruptError
from reshard.formats.codecs import encoded_room
from reshard.formats.contents import Encoding, Extent
from reshard.geometry.bands import bands, row_bytes
from reshard.geometry.box import Box
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, encode


def memory_for(nbytes: int, encoding: Encoding) -> Whole:
    room = encoded_room(encoding, nbytes)
    return Whole(np.empty(nbytes, np.uint8), np.empty(room, np.uint8))


def passed(
    decoder: ChunkDecoder, shape: tuple[int, ...], band_bytes: int
) -> list[tuple[Box, bytes]]:
    """Each wanted part of the chunk's bands, in order."""
    rows = row_bytes(shape, 4) or [4]
    memory = np.empty(math.prod(shape) * 4, np.uint8)
    found = []
    with closing(decoder):
        for band in bands(shape, len(shape), rows, band_bytes, decoder.part):
            if decoder.is_behind(band):
                break
            nbytes, part = decoder.read(band, memory, np.dtype("<u4"))
            assert nbytes == math.prod(band.box(shape).shape) * 4
            if part is not None:
                found.append((part[1], part[0].tobytes()))
        else:
            decoder.check_end()
    return found


@given(st.data())
def test_bands_of_a_whole_chunk_are_those_of_a_stream(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    origin = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    ends = [
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in shape
    ]
    wanted = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends)).shift(origin)
    values = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    encoding = data.draw(st.sampled_from((Encoding(), RAW_CRC, ZSTD, ZSTD_CRC)))
    inline = encode(values, encoding)
    stored = StoredChunks("w", "uint32", encoding, bytes(4))
    chunk = SourceChunk(
        (0,) * len(shape),
        Extent("it", 0, len(inline), inline),
        Box.full(shape).shift(origin),
        shape,
    )
    band_bytes = data.draw(st.sampled_from((1, 16, 60, 1 << 20)))
    whole = memory_for(values.nbytes, encoding)
    at_once = passed(ChunkDecoder(stored, chunk, wanted, origin, whole), shape, band_bytes)
    assert at_once == passed(ChunkDecoder(stored, chunk, wanted, origin), shape, band_bytes)
    got = np.full(shape, -1, np.int64)
    for box, elements in at_once:
        where = box.relative_to(origin)
        got[where.slices] = np.frombuffer(elements, "<u4").reshape(where.shape)
    inside = wanted.relative_to(origin).slices
    np.testing.assert_array_equal(got[inside], values[inside])


def test_parts_of_a_whole_chunk_are_not_copied():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    inline = encode(values, ZSTD)
    stored = StoredChunks("w", "uint32", ZSTD, bytes(4))
    chunk = SourceChunk((0, 0), Extent("it", 0, len(inline), inline), Box.full((6, 4)), (6, 4))
    whole = memory_for(values.nbytes, ZSTD)
    decoder = ChunkDecoder(stored, chunk, chunk.box, (0, 0), whole)
    _, part = decoder.read(
        next(bands((6, 4), 2, [16, 4], 32)), np.empty(0, np.uint8), np.dtype("<u4")
    )
    assert part is not None
    assert np.shares_memory(part[0], whole.decoded)


def test_a_chunk_that_is_damaged_is_refused_before_any_of_it_passes(tmp_path: Path):
    data = bytearray(encode(np.arange(1 << 18, dtype=np.uint32), ZSTD_CRC))
    data[-1] ^= 1
    (tmp_path / "data").write_bytes(data)
    stored = StoredChunks("w", "uint32", ZSTD_CRC, bytes(4))
    extent = Extent(str(tmp_path / "data"), 0, len(data))
    chunk = SourceChunk((3,), extent, Box.full((1 << 18,)), (1 << 18,))
    with pytest.raises(CorruptError, match=r"tensor 'w', chunk \[3\]: its CRC32C is recorded as"):
        ChunkDecoder(stored, chunk, chunk.box, (0,), memory_for(1 << 20, ZSTD_CRC))
