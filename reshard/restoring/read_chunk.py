"""Reads one chunk into the buffers that need it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.task import CastStats
from reshard.formats.codecs import is_seekable
from reshard.geometry.dtypes import numpy_dtype, opaque_dtype
from reshard.restoring.chunk_reads import ChunkRead, passages

if TYPE_CHECKING:
    import numpy as np

    from reshard.engine.buffers import Bytes


class ChunkResult(Struct, frozen=True):
    """What reading a chunk gave.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be: of a raw chunk the elements asked for, of another
            all of it.
        crc: linear contribution to the tensor's digest, where it was wanted.
    """

    read_bytes: int
    needed_bytes: int
    crc: int
    cast: CastStats


def read_chunk(read: ChunkRead, memory: Bytes) -> ChunkResult:
    """Fills every buffer with what it needs of the chunk; ``memory`` is a band buffer of BAND_BYTES.

    Raises CorruptError, naming tensor and chunk, where its bytes are wrong, StorageError where they
    cannot be read.
    """
    dtype = _element_type(read)
    cast, crc, read_bytes = CastStats(), 0, 0
    for passage in passages(read):
        with closing(passage):
            for elements, box, is_placed in passage.parts(memory, dtype):
                if read.shape is not None:
                    crc ^= linear_of_box(CRC64NVME, elements, box, read.shape)
                for buffer in () if is_placed else read.buffers:
                    cast = cast + buffer.put(elements, box)
            read_bytes += passage.read_bytes
    return ChunkResult(read_bytes, _needed_bytes(read), crc, cast)


def _needed_bytes(read: ChunkRead) -> int:
    """Stored bytes of the chunk without which its buffers cannot be filled."""
    extent = read.chunk.extent
    if extent is None:
        return 0
    if not is_seekable(read.stored.encoding):
        return extent.length
    return read.itemsize * sum(b.hold.count_in(read.chunk.box) for b in read.buffers)


def _element_type(read: ChunkRead) -> np.dtype[Any]:
    """Elements are seen as their own type for a cast, else as integers that keep every bit."""
    return numpy_dtype(read.stored.dtype) if read.is_cast else opaque_dtype(read.itemsize)
