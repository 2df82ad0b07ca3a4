"""Decodes chunks, alone of all modules: ``ChunkReader`` boxes and bands of one chunk, ``decode_into`` a whole one.

convert reads bands of several chunks in lock step (``source_bands``), all others boxes of one chunk or of many (``box_stream``).
"""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.tensor_digest import row_major
from reshard.engine.task import SourceRead
from reshard.errors import CorruptError
from reshard.formats.codecs import DecodeStream, open_fill, open_stream
from reshard.formats.codecs.source import REMEDY, Source
from reshard.formats.codecs.stream import RawStream
from reshard.formats.contents import Encoding, OperandWindow, SourceChunk, StoredTensor
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box
from reshard.geometry.row_major import MIN_RUN_BYTES, Band, run_elements, span

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.checksums.crc import Crc
    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class ChunkFacts(Struct, frozen=True):
    """Facts that all chunks of a tensor share: name, dtype, encoding, and the content of a missing one."""

    name: str
    dtype: str
    encoding: Encoding
    fill: bytes

    @classmethod
    def of(cls, stored: StoredTensor) -> ChunkFacts:
        """The chunks of a stored tensor."""
        return cls(stored.spec.name, stored.spec.dtype, stored.encoding, stored.fill)

    @classmethod
    def of_read(cls, read: SourceRead) -> ChunkFacts:
        """The chunks of a tensor that a task reads."""
        return cls(read.name, read.dtype, read.encoding, read.fill)

    def where(self, chunk: SourceChunk) -> str:
        """The tensor and the chunk, for messages."""
        return f"tensor {self.name!r}, chunk {list(chunk.index)}"


def open_chunk(
    stored: ChunkFacts,
    chunk: SourceChunk,
    encoded: memoryview | None = None,
    wanted_bytes: int | None = None,
) -> DecodeStream:
    """The chunk's decoded bytes, padding included, in order; a chunk that is not stored gives its fill.

    ``wanted_bytes``: the largest number of leading bytes that will be read; None for all.
    """
    decoded_bytes = chunk_bytes(chunk, stored.dtype)
    if chunk.extent is None:
        return open_fill(stored.fill, decoded_bytes)
    if chunk.extent.computed is not None:
        from reshard.engine.decode.computed_stream import ComputedStream  # few chunks are computed

        # Operands are chunks, too: the class is handed down, since it is made of such streams itself.
        return ComputedStream(chunk.extent.computed, stored.where(chunk), _open_operand)
    return open_stream(
        stored.encoding,
        chunk.extent,
        decoded_bytes,
        stored.where(chunk),
        inside=chunk.box.shape,
        dtype=stored.dtype,
        shape=chunk.stored_shape,
        encoded=encoded,
        wanted_bytes=wanted_bytes,
    )


def _open_operand(operand: OperandWindow, chunk: SourceChunk, dtype: np.dtype[Any]) -> ChunkReader:
    stored = ChunkFacts(operand.name, operand.dtype, operand.encoding, operand.fill)
    return ChunkReader(stored, chunk, chunk.box.intersect(operand.box) or chunk.box, dtype)


def chunk_bytes(chunk: SourceChunk, dtype: str) -> int:
    """Bytes of the decoded chunk, padding included."""
    return math.prod(chunk.stored_shape) * storage_bytes(dtype)


def decode_into(memory: Bytes, stored: ChunkFacts, chunk: SourceChunk, encoded: Bytes) -> None:
    """Fills ``memory``, which is as large as the chunk, with all of it, and checks that nothing is left over.

    ``encoded`` is memory for the encoded bytes, of ``encoded_room`` bytes, or empty.
    """
    with closing(open_chunk(stored, chunk, encoded.data)) as stream:
        stream.readinto(memory.data)
        stream.close_checked()


class ChunkBuffers(Struct, frozen=True):
    """Memory in which a chunk is decoded.

    Attributes:
        decoded: for a band, or for the whole chunk if it is decoded at once.
        encoded: for the encoded bytes of a chunk that is decoded at once; empty for a stream.
    """

    decoded: Bytes
    encoded: Bytes


def check_recorded(name: str, found: str, recorded: str) -> None:
    """Raises CorruptError if the digest of a tensor's bytes, 16 hex digits, is not the recorded one."""
    if found != recorded:
        raise CorruptError(
            f"tensor {name!r}: its bytes have the digest {found}, but {recorded} was recorded when it was written; "
            f"{REMEDY}"
        )


def crc_text(name: str, crc: Crc, file: str = "") -> str:
    """The message for a tensor whose bytes do not have the recorded CRC; ``file``: the file with these bytes, if known."""
    where = f" in {file}" if file else ""
    return (
        f"tensor {name!r}: its bytes{where} do not have the {crc.title} that was recorded when it was written; "
        f"{REMEDY}"
    )


class ChunkReader:
    """An open chunk. Callers read parts of one box of it, each behind the parts read before.

    It is decoded in a stream as it is read, or at once into memory for all of it. Of raw bytes only the requested ones
    are read, unless the rows of a box are too short to be read one by one.

    Attributes:
        wanted: the box, in the tensor.
        inside: the same box, counted from the chunk's start.
        read_bytes: stored bytes that were read so far.
    """

    def __init__(
        self,
        stored: ChunkFacts,
        chunk: SourceChunk,
        wanted: Box,
        dtype: np.dtype[Any],
        at_once: ChunkBuffers | None = None,
    ) -> None:
        """Opens the chunk with elements viewed as ``dtype``; decodes it now if memory for that is given (``at_once``)."""
        self.chunk = chunk
        self.wanted = wanted
        self.read_bytes = 0
        self._stored = stored
        self._dtype = dtype
        self.inside = wanted.relative_to(chunk.box.start)
        self._is_whole = self.inside.shape == chunk.stored_shape
        self._position = 0
        self._decoded: Array | None = None
        self._memory: Bytes | None = None
        self._stream: DecodeStream | None = None
        if at_once is None:
            self._stream = open_chunk(stored, chunk, wanted_bytes=self._wanted_bytes())
        else:
            memory = at_once.decoded[: chunk_bytes(chunk, stored.dtype)]
            decode_into(memory, stored, chunk, at_once.encoded)
            self._memory = at_once.decoded
            self._decoded = memory.view(dtype).reshape(chunk.stored_shape)
        # A checksum needs every byte, and in a bucket each run would be a request.
        encoding = stored.encoding
        self._is_sparse = not (encoding.checksum or encoding.read_ahead_bytes)
        # Only a part of raw bytes can be read alone.
        self._raw = self._stream if isinstance(self._stream, RawStream) else None
        if chunk.extent is not None and self._raw is None:
            self.read_bytes = chunk.extent.length

    @property
    def part(self) -> Box | None:
        """The wanted part of the chunk, counted from its start; None for all of it."""
        return None if self.inside.shape == self.chunk.box.shape else self.inside

    @property
    def is_decoded(self) -> bool:
        """True if all of the chunk is in memory."""
        return self._decoded is not None

    def is_in(self, memory: Bytes | None) -> bool:
        """True if the whole chunk was decoded into this memory."""
        return self._memory is not None and self._memory is memory

    def _wanted_bytes(self) -> int | None:
        """The chunk's bytes up to the last row that is wanted; None for all of it."""
        rows, stored = self.inside.stop[:1], self.chunk.stored_shape
        if not rows or rows[0] >= stored[0]:
            return None
        return rows[0] * math.prod(stored[1:]) * self._dtype.itemsize

    def read(self, box: Box, memory: Bytes) -> Array:
        """The elements of ``box``, counted from the chunk's start: a view of ``memory``, or of the decoded chunk.

        ``memory`` has room for the box, with what lies between its rows unless ``skips_gaps(box)``.
        """
        if self._decoded is not None:
            return self._decoded[box.slices]
        around, itemsize = self.chunk.stored_shape, self._dtype.itemsize
        if self._raw is not None and self.skips_gaps(box):
            taken = memory[: box.size * itemsize]
            self._raw.read_box(box, around, itemsize, taken.data)
            self.read_bytes += taken.nbytes
            return taken.view(self._dtype).reshape(box.shape)
        first, count = span(box, around)
        taken = self._next(first * itemsize, memory[: count * itemsize])
        if count == box.size:
            return taken.view(self._dtype).reshape(box.shape)
        import numpy as np

        strides = row_major(around, itemsize)
        return np.ndarray(box.shape, self._dtype, taken.data, strides=strides)

    def elements_with_gaps(self, box: Box) -> int:
        """The elements for which ``read`` needs memory: those of a box, and those between its rows unless they are skipped."""
        size = box.size
        if not size or self._decoded is not None or box.shape == self.chunk.stored_shape:
            return size
        return size if self.skips_gaps(box) else span(box, self.chunk.stored_shape)[1]

    def skips_gaps(self, box: Box) -> bool:
        """True if the rows of a box, counted from the chunk's start, are read one by one."""
        if self._raw is None:
            return False
        run = run_elements(box.shape, self.chunk.stored_shape)
        return run < box.size and run * self._dtype.itemsize >= MIN_RUN_BYTES

    def read_band(self, band: Band, memory: Bytes) -> tuple[int, tuple[Array, Box] | None]:
        """The number of bytes of a band, and its wanted part: the elements, as of ``read``, and their box of the tensor.

        None instead of that part if nothing of the band is wanted. Then it is not read.
        """
        local = band.box(self.chunk.stored_shape)
        nbytes = local.size * self._dtype.itemsize
        here = local.shift(self.chunk.box.start)
        box = here if self._is_whole else here.intersect(self.wanted)
        if box is None:
            return nbytes, None
        inside = box.relative_to(self.chunk.box.start)
        if not self._is_whole and self._is_sparse and self.skips_gaps(inside):
            return nbytes, (self.read(inside, memory), box)
        elements = self.read(local, memory)
        if not self._is_whole:
            elements = elements[box.relative_to(here.start).slices]
        return nbytes, (elements, box)

    def is_behind(self, band: Band) -> bool:
        """True if this band, and so every later one, lies behind all wanted elements."""
        start = (*band.lead, band.start)
        last = tuple(stop - 1 for stop in self.inside.stop)
        return bool(last) and start > last[: len(start)]

    def _next(self, first: int, out: Bytes) -> Bytes:
        """Fills ``out`` with the decoded bytes from ``first`` on, which is not before the stream's position."""
        if self._stream is None:
            raise ValueError(f"{self._stored.where(self.chunk)} was decoded at once")
        if first > self._position:
            self._stream.skip(first - self._position)
        self._stream.readinto(out.data)
        self._position = first + out.nbytes
        if self._raw is not None:
            self.read_bytes += out.nbytes
        return out

    def check_end(self) -> bool:
        """Does ``check`` if the chunk was read to its end; else returns False."""
        nbytes = chunk_bytes(self.chunk, self._stored.dtype)
        return (self._stream is None or self._position == nbytes) and self.check()

    def check(self) -> bool:
        """Checks the rest of the chunk, that nothing is left over, and that the checksum fits; then closes.

        False if bytes of a raw chunk were skipped, so that its checksum cannot be compared.
        Raises CorruptError, naming tensor and chunk.
        """
        return self._stream is None or self._stream.close_checked()

    def check_all(self) -> None:
        """Does ``check``, but reads a chunk with skipped bytes once more, for its checksum."""
        if not self.check():
            _check_stored(self._stored, self.chunk)

    def close(self) -> None:
        """Closes without checks; may be called twice."""
        if self._stream is not None:
            self._stream.close()


def _check_stored(stored: ChunkFacts, chunk: SourceChunk) -> None:
    """Reads a chunk for its CRC32C, if it has one; CorruptError, naming tensor and chunk, if it does not fit."""
    if chunk.extent is None or not stored.encoding.checksum:
        return
    with closing(
        Source(chunk.extent, stored.where(chunk), True, stored.encoding.read_ahead_bytes)
    ) as source:
        source.read_rest()
        source.check_trailer()
