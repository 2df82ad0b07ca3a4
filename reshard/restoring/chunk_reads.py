"""The ways to read one chunk: decoded in a stream, or ranges of raw bytes.

Rows that lie in one buffer as they lie in the chunk are decoded straight into it; others go through
a small band buffer that is used again. Of a raw chunk that is needed in part, only that part is read,
unless its rows are too short to be read one by one. A checksum is compared where all of a chunk passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.engine.decode.chunk_decoder import ChunkDecoder, StoredChunks
from reshard.engine.task import SourceChunk
from reshard.formats.codecs import is_seekable
from reshard.formats.codecs.source import Source
from reshard.geometry.bands import Band, bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.row_major import MIN_RUN_BYTES, run_elements, run_offsets
from reshard.planning.cost import BAND_BYTES

if TYPE_CHECKING:
    import numpy as np

    from reshard.engine.buffers import Bytes
    from reshard.restoring.regions import Array, Buffer


class ChunkRead(Struct, frozen=True):
    """A chunk and the buffers that need elements of it, no element twice.

    Attributes:
        shape: of the whole tensor, for its digest; None where none is wanted.
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
        """Where the elements of ``box`` (in the tensor) can be decoded to, if they are one stretch of one buffer."""
        found = (buffer.direct(box) for buffer in self.buffers)
        return next((out for out in found if out is not None), None)


class Passage(Protocol):
    """One way through a chunk, with what it has read so far."""

    @property
    def read_bytes(self) -> int: ...

    def parts(self, memory: Bytes, dtype: np.dtype[Any]) -> Iterator[tuple[Array, Box, bool]]:
        """What is needed, part by part: the elements, their box in the tensor, and whether they are
        in their buffer already. ``memory`` is a band buffer of BAND_BYTES.
        """
        ...

    def close(self) -> None: ...


def passages(read: ChunkRead) -> Iterator[Passage]:
    """A range for each box that is worth it, else one stream."""
    boxes = _wanted(read)
    if _reads_ranges(read, boxes):
        yield from (Ranges(read, box) for box in boxes)
    else:
        yield Stream(read, _joint(boxes))


def _wanted(read: ChunkRead) -> list[Box]:
    """What the buffers need of the chunk: one box where they leave no gaps, else one each."""
    held = (buffer.hold.box.intersect(read.chunk.box) for buffer in read.buffers)
    boxes = [box for box in held if box is not None]
    joint = _joint(boxes)
    return [joint] if sum(b.size for b in boxes) >= joint.size else boxes


def _joint(boxes: Sequence[Box]) -> Box:
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


class Stream:
    """The chunk from its start to the end of what is needed."""

    def __init__(self, read: ChunkRead, wanted: Box) -> None:
        self._read = read
        self._lane = ChunkDecoder(read.stored, read.chunk, wanted, read.chunk.box.start)
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
        for band in bands(shape, len(shape), rows, BAND_BYTES, self._lane.part):
            if self._lane.is_behind(band):
                return
            direct = self._read.direct(self._box(band))
            nbytes, part = self._lane.read(band, memory if direct is None else direct, dtype)
            if part is not None:
                self._passed_bytes += nbytes
                yield (*part, direct is not None)
        self._lane.check_end()

    def close(self) -> None:
        self._lane.close()

    def _box(self, band: Band) -> Box:
        """The band in the tensor's coordinates; padding reaches beyond the tensor."""
        chunk = self._read.chunk
        return band.box(chunk.stored_shape).shift(chunk.box.start)


class Ranges:
    """One box of a raw chunk, read range by range; its checksum cannot be compared."""

    def __init__(self, read: ChunkRead, wanted: Box) -> None:
        chunk = read.chunk
        if chunk.extent is None:
            raise ValueError(f"{read.stored.name!r}: a chunk that is not stored has no ranges")
        where = f"tensor {read.stored.name!r}, chunk {list(chunk.index)}"
        self._source = Source(chunk.extent, where, read.stored.encoding.checksum)
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
        """Reads the chunk's elements in ``box``, counted from its start, one run after another."""
        around, itemsize = self._read.chunk.stored_shape, self._read.itemsize
        run_bytes = run_elements(box.shape, around) * itemsize
        data = out.data
        for number, offset in enumerate(run_offsets(box, around)):
            place = number * run_bytes
            self._source.fill(offset * itemsize, data[place : place + run_bytes])
        self.read_bytes += len(out)
