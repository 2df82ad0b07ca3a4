"""Reads one chunk into the buffers that need it: decoded as a stream, or as ranges of raw bytes.

Rows that are contiguous in one buffer are decoded straight into it; others go through a small band buffer, which is
reused. If only a part of a raw chunk is needed, only that part is read, unless its runs are too short to be read one by
one. The checksum of a chunk is compared if the whole chunk was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.decode.chunk_decoder import ChunkDecoder, StoredChunks
from reshard.engine.task import CastStats, SourceChunk
from reshard.formats.codecs import is_seekable
from reshard.formats.codecs.source import Source
from reshard.geometry.bands import Band, bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.row_major import MIN_RUN_BYTES, run_elements, run_offsets
from reshard.planning.cost import BAND_BYTES

if TYPE_CHECKING:
    import numpy as np

    from reshard.engine.buffers import Bytes
    from reshard.restoring.regions import Array, Buffer


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


def read_chunk(read: ChunkRead, memory: Bytes) -> ChunkResult:
    """Copies the chunk's elements into the buffers that need them; ``memory`` is a band buffer of BAND_BYTES.

    Raises CorruptError, naming tensor and chunk, if its bytes are wrong, StorageError if they
    cannot be read.
    """
    dtype = element_dtype(read.stored.dtype, is_cast=read.is_cast)
    cast, crc, read_bytes = CastStats(), 0, 0
    for reader in chunk_readers(read):
        with closing(reader):
            for elements, box, is_placed in reader.parts(memory, dtype):
                if read.shape is not None:
                    crc ^= linear_of_box(CRC64NVME, elements, box, read.shape)
                for buffer in () if is_placed else read.buffers:
                    cast = cast + buffer.put(elements, box)
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


class ChunkReader(Protocol):
    """Reads the needed part of a chunk, and counts the stored bytes that it has read."""

    @property
    def read_bytes(self) -> int: ...

    def parts(self, memory: Bytes, dtype: np.dtype[Any]) -> Iterator[tuple[Array, Box, bool]]:
        """The needed elements in parts: the elements, their box in the tensor, and whether they are in
        their buffer already. ``memory`` is a band buffer of BAND_BYTES.
        """
        ...

    def close(self) -> None: ...


def chunk_readers(read: ChunkRead) -> Iterator[ChunkReader]:
    """One reader of ranges per box if all runs are long enough, else one stream."""
    boxes = _needed_boxes(read)
    if _reads_ranges(read, boxes):
        yield from (RangeReader(read, box) for box in boxes)
    else:
        yield StreamReader(read, _bounding_box(boxes))


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


class StreamReader:
    """Decodes a chunk from its start to the end of the needed box."""

    def __init__(self, read: ChunkRead, wanted: Box) -> None:
        self._read = read
        self._decoder = ChunkDecoder(read.stored, read.chunk, wanted, read.chunk.box.start)
        self._passed_bytes = 0

    @property
    def read_bytes(self) -> int:
        extent = self._read.chunk.extent
        if extent is None:
            return 0
        return self._passed_bytes if is_seekable(self._read.stored.encoding) else extent.length

    def parts(self, memory: Bytes, dtype: np.dtype[Any]) -> Iterator[tuple[Array, Box, bool]]:
        shape = self._read.chunk.stored_shape
        rows = row_bytes(shape, self._read.itemsize) or [self._read.itemsize]
        for band in bands(shape, len(shape), rows, BAND_BYTES, self._decoder.part):
            if self._decoder.is_behind(band):
                return
            direct = self._read.direct(self._box(band))
            nbytes, part = self._decoder.read(band, memory if direct is None else direct, dtype)
            if part is not None:
                self._passed_bytes += nbytes
                yield (*part, direct is not None)
        self._decoder.check_end()

    def close(self) -> None:
        self._decoder.close()

    def _box(self, band: Band) -> Box:
        """The band in the tensor's coordinates; the padding of a chunk is outside of the tensor."""
        chunk = self._read.chunk
        return band.box(chunk.stored_shape).shift(chunk.box.start)


class RangeReader:
    """Reads one box of a raw chunk range by range; the checksum of the chunk cannot be compared."""

    def __init__(self, read: ChunkRead, wanted: Box) -> None:
        chunk = read.chunk
        if chunk.extent is None:
            raise ValueError(f"{read.stored.name!r}: a chunk that is not stored has no ranges")
        where, has_trailer = read.stored.where(chunk), read.stored.encoding.checksum
        self._source = Source(chunk.extent, where, has_trailer)
        self._read = read
        self._wanted = wanted
        self.read_bytes = 0

    def parts(self, memory: Bytes, dtype: np.dtype[Any]) -> Iterator[tuple[Array, Box, bool]]:
        shape, itemsize = self._wanted.shape, self._read.itemsize
        for band in bands(shape, len(shape), row_bytes(shape, itemsize) or [itemsize], BAND_BYTES):
            box = band.box(shape).shift(self._wanted.start)
            direct = self._read.direct(box)
            out = memory[: box.size * itemsize] if direct is None else direct
            self._fill(out, box.relative_to(self._read.chunk.box.start))
            yield out.view(dtype).reshape(box.shape), box, direct is not None

    def close(self) -> None:
        self._source.close()

    def _fill(self, out: Bytes, box: Box) -> None:
        """Reads the elements of ``box``, in the chunk's coordinates, one run after another."""
        around, itemsize = self._read.chunk.stored_shape, self._read.itemsize
        run_bytes = run_elements(box.shape, around) * itemsize
        data = out.data
        for number, offset in enumerate(run_offsets(box, around)):
            place = number * run_bytes
            self._source.fill(offset * itemsize, data[place : place + run_bytes])
        self.read_bytes += len(out)
