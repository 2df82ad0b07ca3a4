"""What is wanted of each band is the same, whether the chunk is streamed or decoded at once; so is each box."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.decode import chunk_reader
from reshard.engine.decode.chunk_reader import ChunkBuffers, ChunkFacts, ChunkReader
from reshard.errors import CorruptError
from reshard.formats.codecs import encoded_room
from reshard.formats.contents import Encoding, Extent, SourceChunk
from reshard.geometry.grid import Box
from reshard.geometry.row_major import bands, row_bytes
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, encode

U4 = np.dtype("<u4")


def memory_for(nbytes: int, encoding: Encoding) -> ChunkBuffers:
    room = encoded_room(encoding, nbytes)
    return ChunkBuffers(np.empty(nbytes, np.uint8), np.empty(room, np.uint8))


@st.composite
def chunks(draw: st.DrawFn) -> tuple[ChunkFacts, SourceChunk, Box, np.ndarray]:
    """A chunk somewhere in a tensor, with padding, a box of it, and all that is stored of it."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    kept = tuple(draw(st.integers(1, n)) for n in shape)  # the rest is padding
    origin = tuple(draw(st.integers(0, 9)) for _ in shape)
    ends = [sorted(draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in kept]
    wanted = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends)).shift(origin)
    values = np.arange(1, math.prod(shape) + 1, dtype=np.uint32).reshape(shape)
    encoding = draw(st.sampled_from((Encoding(), RAW_CRC, ZSTD, ZSTD_CRC)))
    inline = encode(values, encoding)
    extent = Extent("it", 0, len(inline), inline)
    chunk = SourceChunk((0,) * len(shape), extent, Box.full(kept).shift(origin), shape)
    return ChunkFacts("w", "uint32", encoding, bytes(4)), chunk, wanted, values


def passed(reader: ChunkReader, band_bytes: int) -> list[tuple[Box, bytes]]:
    """Each wanted part of the chunk's bands, in order."""
    shape = reader.chunk.stored_shape
    rows = row_bytes(shape, 4) or [4]
    memory = np.empty(math.prod(shape) * 4, np.uint8)
    found = []
    with closing(reader):
        for band in bands(shape, len(shape), rows, band_bytes, reader.part):
            if reader.is_behind(band):
                break
            nbytes, part = reader.read_band(band, memory)
            assert nbytes == math.prod(band.box(shape).shape) * 4
            if part is not None:
                found.append((part[1], part[0].tobytes()))
        reader.check_end()
    return found


@given(chunks(), st.sampled_from((1, 16, 60, 1 << 20)), st.sampled_from((1, 1 << 10)))
def test_bands_of_a_whole_chunk_are_those_of_a_stream(case, band_bytes, min_run_bytes):
    stored, chunk, wanted, values = case
    origin = chunk.box.start
    whole = memory_for(values.nbytes, stored.encoding)
    at_once = passed(ChunkReader(stored, chunk, wanted, U4, whole), band_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_reader, "MIN_RUN_BYTES", min_run_bytes)
        assert at_once == passed(ChunkReader(stored, chunk, wanted, U4), band_bytes)
    got = np.full(values.shape, -1, np.int64)
    for box, elements in at_once:
        where = box.relative_to(origin)
        got[where.slices] = np.frombuffer(elements, "<u4").reshape(where.shape)
    inside = wanted.relative_to(origin).slices
    np.testing.assert_array_equal(got[inside], values[inside])


@given(chunks(), st.booleans(), st.sampled_from((1, 1 << 10)))
def test_boxes_that_follow_one_another_are_read_where_they_lie(case, is_at_once, min_run_bytes):
    stored, chunk, wanted, values = case
    local = wanted.relative_to(chunk.box.start)
    rows = [local]
    if local.rank:
        first, last = local.start[0], local.stop[0]
        ends = zip(range(first, last), range(first + 1, last + 1), strict=True)
        rows = [Box((a, *local.start[1:]), (b, *local.stop[1:])) for a, b in ends]
    buffers = memory_for(values.nbytes, stored.encoding) if is_at_once else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_reader, "MIN_RUN_BYTES", min_run_bytes)
        with closing(ChunkReader(stored, chunk, wanted, U4, buffers)) as reader:
            for row in rows:
                memory = np.empty(values.nbytes, np.uint8)
                if reader.skips_gaps(row):
                    memory = memory[: row.size * 4]
                elements = reader.read(row, memory)
                np.testing.assert_array_equal(elements, values[row.slices])
            assert 0 < reader.read_bytes <= len(chunk.extent.inline)
            reader.check_all()


@pytest.mark.parametrize(
    ("encoding", "read"),
    [(Encoding(), 40 * 1024), (RAW_CRC, 40 * 4096), (Encoding(read_ahead_bytes=1), 40 * 4096)],
    ids=["on a disk", "with a checksum", "in a bucket"],
)
def test_columns_of_a_raw_chunk_are_read_alone_on_a_disk(encoding, read):
    values = np.arange(40 * 1024, dtype=np.uint32).reshape(40, 1024)
    inline = encode(values, encoding)
    stored = ChunkFacts("w", "uint32", encoding, bytes(4))
    extent = Extent("it", 0, len(inline), inline)
    chunk = SourceChunk((0, 0), extent, Box.full((40, 1024)), (40, 1024))
    reader = ChunkReader(stored, chunk, Box((0, 512), (40, 768)), U4)
    found = b"".join(elements for _, elements in passed(reader, 8192))
    assert found == values[:, 512:768].tobytes()
    assert reader.read_bytes == read


def test_parts_of_a_whole_chunk_are_not_copied():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    inline = encode(values, ZSTD)
    stored = ChunkFacts("w", "uint32", ZSTD, bytes(4))
    chunk = SourceChunk((0, 0), Extent("it", 0, len(inline), inline), Box.full((6, 4)), (6, 4))
    whole = memory_for(values.nbytes, ZSTD)
    reader = ChunkReader(stored, chunk, chunk.box, U4, whole)
    _, part = reader.read_band(next(bands((6, 4), 2, [16, 4], 32)), np.empty(0, np.uint8))
    assert part is not None
    assert np.shares_memory(part[0], whole.decoded)


def test_a_chunk_that_is_damaged_is_refused_before_any_of_it_passes(tmp_path: Path):
    data = bytearray(encode(np.arange(1 << 18, dtype=np.uint32), ZSTD_CRC))
    data[-1] ^= 1
    (tmp_path / "data").write_bytes(data)
    stored = ChunkFacts("w", "uint32", ZSTD_CRC, bytes(4))
    extent = Extent(str(tmp_path / "data"), 0, len(data))
    chunk = SourceChunk((3,), extent, Box.full((1 << 18,)), (1 << 18,))
    with pytest.raises(CorruptError, match=r"tensor 'w', chunk \[3\]: its CRC32C is recorded as"):
        ChunkReader(stored, chunk, chunk.box, U4, memory_for(1 << 20, ZSTD_CRC))


@pytest.mark.parametrize("encoding", [RAW_CRC, ZSTD_CRC])
def test_a_chunk_of_which_bytes_were_skipped_is_checked_in_the_end(encoding):
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    data = bytearray(encode(values, encoding))
    data[-1] ^= 1
    stored = ChunkFacts("w", "uint32", encoding, bytes(4))
    chunk = SourceChunk((0, 0), Extent("it", 0, len(data), bytes(data)), Box.full((6, 4)), (6, 4))
    middle = Box((2, 0), (4, 4))
    with closing(ChunkReader(stored, chunk, chunk.box, U4)) as reader:
        found = reader.read(middle, np.empty(32, np.uint8))
        np.testing.assert_array_equal(found, values[2:4])
        assert not reader.check_end()  # its end was not reached
        with pytest.raises(CorruptError, match="its CRC32C is recorded as"):
            reader.check_all()


def test_what_was_decoded_at_once_is_checked():
    values = np.arange(24, dtype=np.uint32)
    inline = encode(values, ZSTD_CRC)
    stored = ChunkFacts("w", "uint32", ZSTD_CRC, bytes(4))
    chunk = SourceChunk((0,), Extent("it", 0, len(inline), inline), Box.full((24,)), (24,))
    with closing(
        ChunkReader(stored, chunk, chunk.box, U4, memory_for(values.nbytes, ZSTD_CRC))
    ) as reader:
        assert reader.is_decoded
        assert reader.check_end()
