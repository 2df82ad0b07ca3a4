"""Reads one chunk, once, into every destination that takes elements of it, and sums it up.

Elements that are contiguous in one destination are decoded straight into it; others go through memory that is reused. If only
a part of a raw chunk is needed, only that part is read, unless its runs are too short to be read one by one.
``ChunkMemory`` gives the memory for this: a chunk is decoded band by band, or at once if that is quicker and fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.checksums.sums import sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.buffers import ALIGNMENT, Arena
from reshard.engine.decode.chunk_reader import ChunkBuffers, ChunkReader, StoredChunks
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.codecs import decoder_bytes, encoded_room, is_seekable
from reshard.formats.contents import Encoding
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.grid import Box
from reshard.geometry.row_major import MIN_RUN_BYTES, bands, row_bytes, run_elements
from reshard.planning.plans import around
from reshard.planning.task_cost import (
    AT_ONCE_BYTES,
    BAND_BYTES,
    CAST_SCRATCH_BYTES,
    TASK_OVERHEAD_BYTES,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class Destination(Protocol):
    """Something that takes elements of a tensor."""

    @property
    def box(self) -> Box:
        """The elements that it takes, or a box around them."""
        ...

    def count_in(self, box: Box) -> int:
        """The number of elements of ``box`` that it takes."""
        ...

    def direct(self, box: Box) -> Bytes | None:
        """The part of its memory that exactly the elements of ``box`` fill, contiguously; None if there is none."""
        ...

    def put(self, elements: Array, box: Box) -> CastStats:
        """Takes its elements from ``elements``, the elements of ``box``; they change after the call."""
        ...


class ChunkRead(Struct, frozen=True):
    """A chunk and the destinations that take elements of it; no element goes to two.

    Attributes:
        is_cast: true if destinations cast their elements.
        shape: of the whole tensor, for its digest; None without a digest.
        is_whole: true if all of the chunk is read and checked, with its padding, even if no destination takes it.
        crcs: the checksums that the format recorded for the tensor, if it is summed up.
    """

    stored: StoredChunks
    chunk: SourceChunk
    destinations: tuple[Destination, ...]
    is_cast: bool
    shape: tuple[int, ...] | None = None
    is_whole: bool = False
    crcs: PieceCrcs | None = None

    @property
    def itemsize(self) -> int:
        return storage_bytes(self.stored.dtype)

    def direct(self, box: Box) -> Bytes | None:
        """The bytes of one destination that the elements of ``box`` fill contiguously; None if there are none."""
        found = (each.direct(box) for each in self.destinations)
        return next((out for out in found if out is not None), None)


class ChunkResult(Struct, frozen=True):
    """The result of reading a chunk.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of a raw chunk, all of any other.
        crc: linear contribution to the tensor's digest; 0 without a digest.
        stored: contribution to the format's own checksum.
    """

    read_bytes: int
    needed_bytes: int
    crc: int
    cast: CastStats
    stored: int = 0


class _Decoded(Struct, frozen=True):
    """Elements of a chunk, valid until the next band is asked for.

    Attributes:
        box: in the tensor.
        is_placed: true if they are in their destination already.
    """

    elements: Array
    box: Box
    is_placed: bool


def read_chunk(read: ChunkRead, memory: ChunkBuffers) -> ChunkResult:
    """Hands the chunk's elements to the destinations that need them; it is decoded in ``memory``.

    Raises CorruptError, naming tensor and chunk, if its bytes are wrong, StorageError if they
    cannot be read.
    """
    cast, crc, stored, read_bytes = CastStats(), 0, 0, 0
    for box in _boxes_to_read(read):
        reader, is_placed = _opened(read, box, memory)
        with closing(reader):
            for band in _bands(read, reader, memory.decoded, is_placed=is_placed):
                if read.shape is not None:
                    crc ^= sum_of_box(band.elements, band.box, read.shape)
                    if read.crcs is not None:
                        stored ^= read.crcs.sum_of_box(band.elements, band.box, read.shape)
                for each in () if band.is_placed else read.destinations:
                    cast = cast + each.put(band.elements, band.box)
            if read.is_whole:
                reader.check_all()
            else:
                reader.check_end()
        read_bytes += reader.read_bytes
    return ChunkResult(read_bytes, _needed_bytes(read), crc, cast, stored)


def _needed_bytes(read: ChunkRead) -> int:
    """Stored bytes of the chunk that its destinations need."""
    extent = read.chunk.extent
    if extent is None:
        return 0
    if not is_seekable(read.stored.encoding):
        return extent.length
    return read.itemsize * sum(each.count_in(read.chunk.box) for each in read.destinations)


def _boxes_to_read(read: ChunkRead) -> list[Box]:
    """The boxes of the chunk that the destinations need, if they leave gaps and each can be read alone; else one around them."""
    if read.is_whole:
        return [read.chunk.box]
    held = (each.box.intersect(read.chunk.box) for each in read.destinations)
    boxes = [box for box in held if box is not None]
    whole = around(boxes)
    is_dense = sum(box.size for box in boxes) >= whole.size
    return [whole] if is_dense or not all(_is_exact(read, box) for box in boxes) else boxes


def _is_exact(read: ChunkRead, box: Box) -> bool:
    """True if only the bytes of a box are read: it is a part of a raw chunk, and is one run or has long ones."""
    chunk = read.chunk
    if chunk.extent is None or box == chunk.box or not is_seekable(read.stored.encoding):
        return False
    run = run_elements(box.shape, chunk.stored_shape)
    return run == box.size or run * read.itemsize >= MIN_RUN_BYTES


def _is_at_once(read: ChunkRead, box: Box, memory: ChunkBuffers) -> bool:
    """True if the chunk is decoded in one call, since a stream would be read to its end. Chunks that are not stored pass in bands."""
    chunk = read.chunk
    is_last = box.stop[:1] == chunk.box.stop[:1]
    return memory.is_at_once and is_last and chunk.extent is not None


def _opened(read: ChunkRead, box: Box, memory: ChunkBuffers) -> tuple[ChunkReader, bool]:
    """The opened chunk, and whether it was decoded into a destination that takes all of it."""
    chunk, buffers, placed = read.chunk, None, None
    dtype = element_dtype(read.stored.dtype, is_cast=read.is_cast)
    if _is_at_once(read, box, memory):
        is_all = box == chunk.box and chunk.box.shape == chunk.stored_shape
        placed = read.direct(chunk.box) if is_all else None
        buffers = memory if placed is None else ChunkBuffers(placed, memory.encoded)
    return ChunkReader(read.stored, chunk, box, dtype, buffers), placed is not None


def _bands(
    read: ChunkRead, reader: ChunkReader, memory: Bytes, *, is_placed: bool
) -> Iterator[_Decoded]:
    """The content of the reader's box: all of it if the chunk was decoded, else bands of the box or of the chunk."""
    if reader.is_decoded:
        yield _Decoded(reader.read(reader.inside, memory), reader.wanted, is_placed)
    elif _is_exact(read, reader.wanted):
        yield from _bands_of_box(read, reader, memory)
    else:
        yield from _bands_of_chunk(read, reader, memory)


def _bands_of_box(read: ChunkRead, reader: ChunkReader, memory: Bytes) -> Iterator[_Decoded]:
    shape, origin = reader.wanted.shape, reader.wanted.start
    rows = row_bytes(shape, read.itemsize) or [read.itemsize]
    for band in bands(shape, len(shape), rows, memory.nbytes):
        box = band.box(shape).shift(origin)
        placed = read.direct(box)
        elements = reader.read(
            box.relative_to(reader.chunk.box.start), memory if placed is None else placed
        )
        yield _Decoded(elements, box, placed is not None)


def _bands_of_chunk(read: ChunkRead, reader: ChunkReader, memory: Bytes) -> Iterator[_Decoded]:
    shape, origin = reader.chunk.stored_shape, reader.chunk.box.start
    rows = row_bytes(shape, read.itemsize) or [read.itemsize]
    for band in bands(shape, len(shape), rows, memory.nbytes, reader.part):
        if reader.is_behind(band):
            return
        placed = read.direct(band.box(shape).shift(origin))
        _, part = reader.read_band(band, memory if placed is None else placed)
        if part is not None:
            yield _Decoded(*part, placed is not None)


class ChunkMemory(Struct, frozen=True):
    """Bytes that decoding one chunk takes.

    Attributes:
        decoded: for a band, or for the whole chunk if it is decoded at once.
        encoded: for the encoded bytes of a chunk that is decoded at once; 0 for a stream.
        beside: for the decoder, casts and small objects.
    """

    decoded: int
    encoded: int
    beside: int

    @property
    def is_at_once(self) -> bool:
        return self.encoded > 0

    @property
    def arena(self) -> int:
        """Bytes of the two buffers, one behind the other."""
        return -(-self.decoded // ALIGNMENT) * ALIGNMENT + self.encoded

    @property
    def total(self) -> int:
        return self.arena + self.beside

    def buffers(self, arena: Arena) -> ChunkBuffers:
        """The buffers, from an unused arena of at least these bytes."""
        return ChunkBuffers(arena.take(self.decoded), arena.take(self.encoded))


def stream_memory(encoding: Encoding, chunk_bytes: int, *, is_cast: bool = False) -> ChunkMemory:
    """The memory to decode chunks of at most ``chunk_bytes`` in a stream."""
    cast = CAST_SCRATCH_BYTES if is_cast else 0
    beside = decoder_bytes(encoding, chunk_bytes) + TASK_OVERHEAD_BYTES + cast
    return ChunkMemory(min(chunk_bytes, BAND_BYTES), 0, beside)


def quickest_memory(
    encoding: Encoding, chunk_bytes: int, most_bytes: int, *, is_cast: bool = False
) -> ChunkMemory:
    """The memory to decode them at once if that is quicker and takes at most ``most_bytes``; else in a stream."""
    streamed = stream_memory(encoding, chunk_bytes, is_cast=is_cast)
    room = encoded_room(encoding, chunk_bytes)
    at_once = ChunkMemory(chunk_bytes, room, streamed.beside)
    gains = room > 0 and chunk_bytes <= AT_ONCE_BYTES
    return at_once if gains and at_once.total <= most_bytes else streamed
