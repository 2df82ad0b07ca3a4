"""Reads the needed elements of one chunk, in parts: decoded in a stream, at once, or as ranges of raw bytes.

Elements that are contiguous in the caller's memory are decoded straight into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from reshard.engine.decode.chunk_decoder import (
    ChunkDecoder,
    StoredChunks,
    chunk_bytes,
    decode_into,
)
from reshard.engine.decode.chunk_memory import ChunkBuffers
from reshard.engine.task import SourceChunk
from reshard.formats.codecs import is_seekable
from reshard.formats.codecs.source import Source
from reshard.geometry.bands import bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]

Direct: TypeAlias = "Callable[[Box], Bytes | None]"
"""The caller's memory that exactly the elements of a box fill, contiguously; None if there is none."""


class Part(Struct, frozen=True):
    """Elements of a chunk.

    Attributes:
        box: in the tensor's coordinates.
        is_placed: whether they are in the caller's memory already.
    """

    elements: Array
    box: Box
    is_placed: bool


class PartReader(Struct):
    """Reads the elements of ``wanted``, a box of the tensor within one chunk; the last part comes before all checks.

    Attributes:
        to_end: whether a stream reads padding at the end too.
        read_bytes: stored bytes that were read so far.
        is_checked: whether the chunk's checksum, if it has one, was compared; known at the end.
    """

    stored: StoredChunks
    chunk: SourceChunk
    wanted: Box
    to_end: bool = False
    read_bytes: int = 0
    is_checked: bool = False

    def parts(self, buffers: ChunkBuffers, dtype: np.dtype[Any], direct: Direct) -> Iterator[Part]:
        """The wanted elements, viewed as ``dtype``; a part is valid until the next one is asked for.

        Raises CorruptError, naming tensor and chunk, if bytes are wrong, StorageError if they cannot be read.
        """
        if buffers.is_at_once and self._needs_end():
            yield self._at_once(buffers, dtype, direct)
        else:
            yield from self._streamed(buffers.decoded, dtype, direct)

    def _needs_end(self) -> bool:
        """Whether a stream would be read to its end. What is not stored is made band by band."""
        is_last = self.wanted.stop[:1] == self.chunk.box.stop[:1]
        return is_last and self.chunk.extent is not None

    def _at_once(self, buffers: ChunkBuffers, dtype: np.dtype[Any], direct: Direct) -> Part:
        chunk = self.chunk
        is_all = self.wanted == chunk.box and chunk.box.shape == chunk.stored_shape
        placed = direct(chunk.box) if is_all else None
        nbytes = chunk_bytes(chunk, self.stored.dtype)
        decoded = buffers.decoded[:nbytes] if placed is None else placed
        decode_into(decoded, self.stored, chunk, buffers.encoded)
        self.read_bytes, self.is_checked = _length(chunk), True
        elements = decoded.view(dtype).reshape(chunk.stored_shape)
        inside = self.wanted.relative_to(chunk.box.start)
        return Part(elements[inside.slices], self.wanted, placed is not None)

    def _streamed(self, memory: Bytes, dtype: np.dtype[Any], direct: Direct) -> Iterator[Part]:
        chunk, itemsize = self.chunk, storage_bytes(self.stored.dtype)
        is_raw = is_seekable(self.stored.encoding)
        self.read_bytes = 0 if is_raw else _length(chunk)
        rows = row_bytes(chunk.stored_shape, itemsize) or [itemsize]
        skips = False
        origin = chunk.box.start
        with closing(ChunkDecoder(self.stored, chunk, self.wanted, origin)) as decoder:
            shape = chunk.stored_shape
            for band in bands(shape, len(shape), rows, memory.nbytes, decoder.part):
                if decoder.is_behind(band) and not self.to_end:
                    return
                placed = direct(band.box(shape).shift(origin))
                nbytes, part = decoder.read(band, memory if placed is None else placed, dtype)
                skips = skips or part is None
                if part is not None:
                    self.read_bytes += nbytes if is_raw and chunk.extent is not None else 0
                    yield Part(*part, placed is not None)
            decoder.check_end()
        self.is_checked = not skips


class RangeReader(Struct):
    """Reads a box of a raw chunk range by range; the checksum of the chunk cannot be compared."""

    stored: StoredChunks
    chunk: SourceChunk
    wanted: Box
    read_bytes: int = 0

    def parts(self, buffers: ChunkBuffers, dtype: np.dtype[Any], direct: Direct) -> Iterator[Part]:
        """As ``PartReader.parts``."""
        shape, itemsize = self.wanted.shape, storage_bytes(self.stored.dtype)
        rows = row_bytes(shape, itemsize) or [itemsize]
        with closing(self._source()) as source:
            for band in bands(shape, len(shape), rows, buffers.decoded.nbytes):
                box = band.box(shape).shift(self.wanted.start)
                placed = direct(box)
                out = buffers.decoded[: box.size * itemsize] if placed is None else placed
                inside = box.relative_to(self.chunk.box.start)
                source.fill_box(inside, self.chunk.stored_shape, itemsize, out.data)
                self.read_bytes += len(out)
                yield Part(out.view(dtype).reshape(box.shape), box, placed is not None)

    def _source(self) -> Source:
        if self.chunk.extent is None:
            raise ValueError(f"{self.stored.where(self.chunk)}: what is not stored has no ranges")
        where, encoding = self.stored.where(self.chunk), self.stored.encoding
        return Source(self.chunk.extent, where, encoding.checksum, encoding.read_ahead_bytes)


def _length(chunk: SourceChunk) -> int:
    return 0 if chunk.extent is None else chunk.extent.length
