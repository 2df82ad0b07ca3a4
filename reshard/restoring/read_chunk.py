"""Reads one chunk into the buffers that need it.

Elements that are contiguous in one buffer are decoded straight into it; others go through memory that is reused.
If only a part of a raw chunk is needed, only that part is read, unless its runs are too short to be read one by
one. The checksum of a chunk is compared if the whole chunk was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.checksums.sums import sum_of_box
from reshard.engine.decode.chunk_decoder import StoredChunks
from reshard.engine.decode.chunk_memory import ChunkBuffers
from reshard.engine.decode.chunk_parts import PartReader, RangeReader
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.codecs import is_seekable
from reshard.geometry.box import Box
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.row_major import MIN_RUN_BYTES, run_elements

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes
    from reshard.restoring.regions import Buffer


class ChunkRead(Struct, frozen=True):
    """A chunk and the buffers that need elements of it; no element goes to two buffers.

    Attributes:
        shape: of the whole tensor, for its digest; None without a digest.
    """

    stored: StoredChunks
    chunk: SourceChunk
    buffers: tuple[Buffer, ...]
    is_cast: bool
    shape: tuple[int, ...] | None = None

    @property
    def itemsize(self) -> int:
        return storage_bytes(self.stored.dtype)

    def direct(self, box: Box) -> Bytes | None:
        """The bytes of one buffer that the elements of ``box`` fill contiguously; None if there are none."""
        found = (buffer.direct(box) for buffer in self.buffers)
        return next((out for out in found if out is not None), None)


class ChunkResult(Struct, frozen=True):
    """The result of reading a chunk.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of a raw chunk, all of any other.
        crc: linear contribution to the tensor's digest; 0 without a digest.
    """

    read_bytes: int
    needed_bytes: int
    crc: int
    cast: CastStats


def read_chunk(read: ChunkRead, memory: ChunkBuffers) -> ChunkResult:
    """Copies the chunk's elements into the buffers that need them; it is decoded in ``memory``.

    Raises CorruptError, naming tensor and chunk, if its bytes are wrong, StorageError if they
    cannot be read.
    """
    dtype = element_dtype(read.stored.dtype, is_cast=read.is_cast)
    cast, crc, read_bytes = CastStats(), 0, 0
    for reader in chunk_readers(read):
        for part in reader.parts(memory, dtype, read.direct):
            if read.shape is not None:
                crc ^= sum_of_box(part.elements, part.box, read.shape)
            for buffer in () if part.is_placed else read.buffers:
                cast = cast + buffer.put(part.elements, part.box)
        read_bytes += reader.read_bytes
    return ChunkResult(read_bytes, _needed_bytes(read), crc, cast)


def _needed_bytes(read: ChunkRead) -> int:
    """Stored bytes of the chunk that its buffers need."""
    extent = read.chunk.extent
    if extent is None:
        return 0
    if not is_seekable(read.stored.encoding):
        return extent.length
    return read.itemsize * sum(b.region.count_in(read.chunk.box) for b in read.buffers)


def chunk_readers(read: ChunkRead) -> Iterator[PartReader | RangeReader]:
    """One reader of ranges per box if all runs are long enough, else one that decodes the chunk."""
    boxes = _needed_boxes(read)
    if _reads_ranges(read, boxes):
        yield from (RangeReader(read.stored, read.chunk, box) for box in boxes)
    else:
        yield PartReader(read.stored, read.chunk, _bounding_box(boxes))


def _needed_boxes(read: ChunkRead) -> list[Box]:
    """The boxes of the chunk that the buffers need: one box if they leave no gaps, else one per buffer."""
    held = (buffer.region.box.intersect(read.chunk.box) for buffer in read.buffers)
    boxes = [box for box in held if box is not None]
    around = _bounding_box(boxes)
    return [around] if sum(b.size for b in boxes) >= around.size else boxes


def _bounding_box(boxes: Sequence[Box]) -> Box:
    starts, stops = [b.start for b in boxes], [b.stop for b in boxes]
    return Box(
        tuple(map(min, zip(*starts, strict=True))), tuple(map(max, zip(*stops, strict=True)))
    )


def _reads_ranges(read: ChunkRead, boxes: Sequence[Box]) -> bool:
    chunk = read.chunk
    if chunk.extent is None or not is_seekable(read.stored.encoding) or boxes == [chunk.box]:
        return False
    runs = [(box, run_elements(box.shape, chunk.stored_shape)) for box in boxes]
    return all(run * read.itemsize >= MIN_RUN_BYTES or run == box.size for box, run in runs)
