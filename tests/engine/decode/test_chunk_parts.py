"""The parts of a chunk are its wanted elements, however it is decoded and wherever they are put."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.buffers import Arena
from reshard.engine.decode.chunk_decoder import StoredChunks
from reshard.engine.decode.chunk_memory import quickest_memory, stream_memory
from reshard.engine.decode.chunk_parts import PartReader, RangeReader
from reshard.engine.task import SourceChunk
from reshard.errors import CorruptError
from reshard.formats.contents import Encoding, Extent
from reshard.geometry.box import Box
from reshard.planning.cost import AT_ONCE_BYTES
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, encode

MIB = 1 << 20
U4 = np.dtype("<u4")
ENCODINGS = (Encoding(), RAW_CRC, ZSTD, ZSTD_CRC)


def chunk_of(values: np.ndarray, encoding: Encoding, box: Box) -> SourceChunk:
    inline = encode(values, encoding)
    return SourceChunk((0,) * values.ndim, Extent("it", 0, len(inline), inline), box, values.shape)


def nowhere(_: Box) -> None:
    return None


@given(st.data())
def test_parts_make_the_wanted_elements(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    kept = tuple(data.draw(st.integers(1, n)) for n in shape)  # the rest is padding
    origin = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    ends = [sorted(data.draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in kept]
    wanted = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends)).shift(origin)
    values = np.arange(1, math.prod(shape) + 1, dtype=np.uint32).reshape(shape)
    encoding = data.draw(st.sampled_from(ENCODINGS))
    stored = StoredChunks("w", "uint32", encoding, bytes(4))
    chunk = chunk_of(values, encoding, Box.full(kept).shift(origin))
    out = np.zeros(kept, np.uint32)  # the caller's memory, for the whole chunk

    def direct(box: Box) -> np.ndarray | None:
        place = out[box.relative_to(origin).slices] if chunk.box.contains(box) else None
        is_one = place is not None and place.flags.c_contiguous
        return place.reshape(-1).view(np.uint8) if is_one and data.draw(st.booleans()) else None

    readers = [PartReader(stored, chunk, wanted, to_end=data.draw(st.booleans()))]
    if encoding.compressor == "none":
        readers.append(RangeReader(stored, chunk, wanted))
    memory = data.draw(
        st.sampled_from((stream_memory, lambda *of: quickest_memory(*of, 64 * MIB)))
    )(encoding, values.nbytes)
    for reader in readers:
        out[...] = 0
        arena = Arena(memory.arena)
        for part in reader.parts(memory.buffers(arena), U4, direct):
            assert part.elements.shape == part.box.shape
            if not part.is_placed:
                out[part.box.relative_to(origin).slices] = part.elements
        inside = wanted.relative_to(origin).slices
        np.testing.assert_array_equal(out[inside], values[inside])
        assert 0 < reader.read_bytes <= chunk.extent.length


def test_a_chunk_is_decoded_straight_into_the_callers_memory():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    stored = StoredChunks("w", "uint32", ZSTD, bytes(4))
    chunk, out = chunk_of(values, ZSTD, Box.full((6, 4))), np.zeros((6, 4), np.uint32)
    memory = quickest_memory(ZSTD, values.nbytes, 64 * MIB)
    buffers = memory.buffers(Arena(memory.arena))
    buffers.decoded[:] = 0
    reader = PartReader(stored, chunk, chunk.box)
    (part,) = reader.parts(buffers, U4, lambda _: out.reshape(-1).view(np.uint8))
    assert part.is_placed
    assert np.shares_memory(part.elements, out)
    np.testing.assert_array_equal(out, values)
    assert not buffers.decoded.any()
    assert reader.is_checked


def test_what_is_not_needed_at_the_end_is_not_decoded():
    values = np.arange(1 << 20, dtype=np.uint32).reshape(1 << 10, 1 << 10)
    stored = StoredChunks("w", "uint32", ZSTD_CRC, bytes(4))
    chunk = chunk_of(values, ZSTD_CRC, Box.full(values.shape))
    memory = quickest_memory(ZSTD_CRC, values.nbytes, 64 * MIB)
    assert memory.is_at_once
    damaged = bytearray(chunk.extent.inline)
    damaged[-1] ^= 1
    chunk = SourceChunk(
        (0, 0), Extent("it", 0, len(damaged), bytes(damaged)), chunk.box, values.shape
    )
    buffers = memory.buffers(Arena(memory.arena))
    reader = PartReader(stored, chunk, Box((0, 0), (10, 1 << 10)))
    (part,) = reader.parts(buffers, U4, nowhere)
    np.testing.assert_array_equal(part.elements, values[:10])
    assert not reader.is_checked
    with pytest.raises(
        CorruptError, match=r"tensor 'w', chunk \[0, 0\]: its CRC32C is recorded as"
    ):
        next(PartReader(stored, chunk, chunk.box).parts(buffers, U4, nowhere))


def test_a_chunk_without_stored_bytes_has_no_ranges():
    chunk = SourceChunk((2,), None, Box.full((4,)), (4,))
    memory = stream_memory(Encoding(), 16)
    reader = RangeReader(StoredChunks("w", "uint32", Encoding(), bytes(4)), chunk, chunk.box)
    with pytest.raises(
        ValueError, match=r"tensor 'w', chunk \[2\]: what is not stored has no ranges"
    ):
        next(reader.parts(memory.buffers(Arena(memory.arena)), U4, nowhere))


def test_memory_to_decode_at_once_is_taken_only_where_it_gains_and_fits():
    at_once = quickest_memory(ZSTD, 8 * MIB, 64 * MIB)
    assert at_once.is_at_once
    assert at_once.decoded == 8 * MIB
    assert at_once.total >= 16 * MIB
    assert quickest_memory(ZSTD, 8 * MIB, at_once.total) == at_once
    streamed = stream_memory(ZSTD, 8 * MIB)
    assert (streamed.decoded, streamed.encoded) == (2 * MIB, 0)
    assert quickest_memory(ZSTD, 8 * MIB, at_once.total - 1) == streamed
    assert not quickest_memory(ZSTD, AT_ONCE_BYTES + 1, 1 << 30).is_at_once
    assert not quickest_memory(Encoding(), 8 * MIB, 1 << 30).is_at_once  # raw: nothing to gain
    cast = quickest_memory(ZSTD, 8 * MIB, 64 * MIB, is_cast=True)
    assert cast.total == at_once.total + (2 << 20)
