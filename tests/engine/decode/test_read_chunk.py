"""Every place gets its elements of a chunk, however it is decoded and wherever they are put."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.checksums.sums import sum_of_box
from reshard.engine.buffers import Arena
from reshard.engine.decode import chunk_reader, read_chunk
from reshard.engine.decode.chunk_reader import StoredChunks
from reshard.engine.decode.read_chunk import ChunkRead, quickest_memory, stream_memory
from reshard.engine.task import CastStats, SourceChunk
from reshard.errors import CorruptError
from reshard.formats.contents import Encoding, Extent
from reshard.geometry.grid import Box
from reshard.planning.task_cost import AT_ONCE_BYTES
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, encode

MIB = 1 << 20
ENCODINGS = (Encoding(), RAW_CRC, ZSTD, ZSTD_CRC)


class Kept:
    """A place that keeps the elements of a box of uint32; ``is_direct``: whether it lends its memory."""

    def __init__(self, box: Box, *, is_direct: bool) -> None:
        self.box = box
        self.array = np.zeros(box.shape, np.uint32)
        self.copied = 0
        self._is_direct = is_direct

    def count_in(self, box: Box) -> int:
        inside = self.box.intersect(box)
        return 0 if inside is None else inside.size

    def direct(self, box: Box) -> np.ndarray | None:
        if not self._is_direct or not self.box.contains(box):
            return None
        place = self.array[box.relative_to(self.box.start).slices]
        return place.reshape(-1).view(np.uint8) if place.flags.c_contiguous else None

    def put(self, elements: np.ndarray, box: Box) -> CastStats:
        inside = self.box.intersect(box)
        if inside is not None:
            self.copied += inside.size
            taken = elements[inside.relative_to(box.start).slices]
            self.array[inside.relative_to(self.box.start).slices] = taken
        return CastStats(nans=1)


def chunk_of(values: np.ndarray, encoding: Encoding, box: Box) -> SourceChunk:
    inline = encode(values, encoding)
    return SourceChunk((0,) * values.ndim, Extent("it", 0, len(inline), inline), box, values.shape)


def boxes_of(draw: st.DrawFn, kept: tuple[int, ...]) -> list[Box]:
    """One box of a chunk, or the two halves that it is cut into along one dimension."""
    ends = [sorted(draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in kept]
    box = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))
    dims = [d for d, n in enumerate(box.shape) if n > 2]
    if not dims or draw(st.booleans()):
        return [box]
    dim = draw(st.sampled_from(dims))
    gap = draw(st.integers(0, 1))

    def part(start: int, stop: int) -> Box:
        def cut(place: tuple[int, ...], to: int) -> tuple[int, ...]:
            return (*place[:dim], to, *place[dim + 1 :])

        return Box(cut(box.start, start), cut(box.stop, stop))

    middle = box.start[dim] + 1
    return [part(box.start[dim], middle), part(middle + gap, box.stop[dim])]


@given(st.data())
def test_places_get_their_elements(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    kept = tuple(data.draw(st.integers(1, n)) for n in shape)  # the rest is padding
    origin = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    values = np.arange(1, math.prod(shape) + 1, dtype=np.uint32).reshape(shape)
    encoding = data.draw(st.sampled_from(ENCODINGS))
    stored = StoredChunks("w", "uint32", encoding, bytes(4))
    chunk = chunk_of(values, encoding, Box.full(kept).shift(origin))
    boxes = [box.shift(origin) for box in boxes_of(data.draw, kept)]
    places = tuple(Kept(box, is_direct=data.draw(st.booleans())) for box in boxes)
    is_whole = data.draw(st.booleans())
    full = tuple(a + n for a, n in zip(origin, kept, strict=True))
    read = ChunkRead(stored, chunk, places, False, full, is_whole=is_whole)
    memory = data.draw(
        st.sampled_from((stream_memory, lambda *of: quickest_memory(*of, 64 * MIB)))
    )(encoding, values.nbytes)
    shortest = data.draw(st.sampled_from((1, 1 << 10)))
    with pytest.MonkeyPatch.context() as patch:
        for module in (chunk_reader, read_chunk):  # which share the constant
            patch.setattr(module, "MIN_RUN_BYTES", shortest)
        result = read_chunk.read_chunk(read, memory.buffers(Arena(memory.arena)))
    for place in places:
        inside = place.box.relative_to(origin).slices
        np.testing.assert_array_equal(place.array, values[inside])
    assert result.read_bytes <= chunk.extent.length
    if encoding.compressor == "none":
        assert result.needed_bytes == sum(place.array.nbytes for place in places)
        assert result.read_bytes >= result.needed_bytes
    else:
        assert result.needed_bytes == result.read_bytes == chunk.extent.length
    if is_whole:
        inside = Box.full(kept).slices
        assert result.crc == sum_of_box(values[inside], chunk.box, full)


def test_a_chunk_is_decoded_straight_into_a_place():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    stored = StoredChunks("w", "uint32", ZSTD, bytes(4))
    chunk, place = chunk_of(values, ZSTD, Box.full((6, 4))), Kept(Box.full((6, 4)), is_direct=True)
    memory = quickest_memory(ZSTD, values.nbytes, 64 * MIB)
    buffers = memory.buffers(Arena(memory.arena))
    buffers.decoded[:] = 0
    result = read_chunk.read_chunk(ChunkRead(stored, chunk, (place,), False), buffers)
    np.testing.assert_array_equal(place.array, values)
    assert not place.copied
    assert result.cast == CastStats()
    assert not buffers.decoded.any()


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
    place = Kept(Box((0, 0), (10, 1 << 10)), is_direct=False)
    read_chunk.read_chunk(ChunkRead(stored, chunk, (place,), False), buffers)
    np.testing.assert_array_equal(place.array, values[:10])
    with pytest.raises(
        CorruptError, match=r"tensor 'w', chunk \[0, 0\]: its CRC32C is recorded as"
    ):
        read_chunk.read_chunk(ChunkRead(stored, chunk, (place,), False, is_whole=True), buffers)


def test_a_chunk_that_is_not_stored_gives_its_fill():
    chunk = SourceChunk((2,), None, Box((8,), (12,)), (4,))
    memory, place = stream_memory(Encoding(), 16), Kept(Box((9,), (12,)), is_direct=True)
    stored = StoredChunks("w", "uint32", Encoding(), b"\7\0\0\0")
    result = read_chunk.read_chunk(
        ChunkRead(stored, chunk, (place,), False), memory.buffers(Arena(memory.arena))
    )
    np.testing.assert_array_equal(place.array, [7, 7, 7])
    assert (result.read_bytes, result.needed_bytes) == (0, 0)


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
