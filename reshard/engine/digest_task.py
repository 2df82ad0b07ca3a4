"""DigestTask: chunks of one tensor that are decoded for its digest, and their contribution to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.sums import sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.buffers import ArenaPool, lent
from reshard.engine.cast import converted
from reshard.engine.decode.chunk_reader import ChunkBuffers, StoredChunks
from reshard.engine.decode.read_chunk import ChunkMemory, ChunkRead, ChunkResult, read_chunk
from reshard.engine.task import CastStats, SourceChunk
from reshard.engine.write.target_digest import slabs
from reshard.errors import FormatError, StorageError, VerificationError
from reshard.geometry.dtypes import numpy_dtype, storage_bytes
from reshard.geometry.grid import Box
from reshard.layout.changes import Cast

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class DigestTask(Struct, frozen=True):
    """Chunks of one tensor whose digest is taken.

    Attributes:
        memory: for decoding each of them.
        cast: a cast of the tensor whose digest is taken too.
        crcs: the checksums that the format recorded for the tensor.
    """

    stored: StoredChunks
    shape: tuple[int, ...]
    chunks: tuple[SourceChunk, ...]
    memory: ChunkMemory
    cast: Cast | None = None
    crcs: PieceCrcs | None = None


class DigestResult(Struct, frozen=True):
    """Linear contribution of a task's chunks to its tensor's digest.

    Attributes:
        damage: the reason why chunks could not be read, if the caller collects damage; else "".
        cast_crc: contribution to the digest of the cast tensor.
        stored: contribution to the format's own checksum.
    """

    name: str
    crc: int
    nbytes: int
    damage: str = ""
    cast_crc: int = 0
    stored: int = 0


def digest_or_damage(task: DigestTask, pool: ArenaPool | None = None) -> DigestResult:
    """Does ``digest_chunks``, but returns damage as a result instead of raising it."""
    try:
        return digest_chunks(task, pool)
    except (FormatError, StorageError, VerificationError) as error:
        nbytes = sum(chunk.box.size for chunk in task.chunks) * storage_bytes(task.stored.dtype)
        return DigestResult(task.stored.name, 0, nbytes, str(error))


def digest_chunks(task: DigestTask, pool: ArenaPool | None = None) -> DigestResult:
    """Decodes the task's chunks and sums them up; ``pool`` lends used buffers (None: fresh ones)."""
    itemsize = storage_bytes(task.stored.dtype)
    crc = cast_crc = stored = nbytes = 0
    with lent(pool, task.memory.arena, task.memory.total) as arena:
        buffers = task.memory.buffers(arena)
        for chunk in task.chunks:
            found, cast = _digest_chunk(task, chunk, buffers)
            crc ^= found.crc
            stored ^= found.stored
            cast_crc ^= cast
            nbytes += chunk.box.size * itemsize
    return DigestResult(task.stored.name, crc, nbytes, cast_crc=cast_crc, stored=stored)


def _digest_chunk(
    task: DigestTask, chunk: SourceChunk, memory: ChunkBuffers
) -> tuple[ChunkResult, int]:
    """The result of reading the chunk, and its contribution to the digest of the cast tensor."""
    cast = None if task.cast is None else _CastDigest(task.shape, task.cast)
    destinations = () if cast is None else (cast,)
    read = ChunkRead(
        task.stored,
        chunk,
        destinations,
        cast is not None,
        task.shape,
        is_whole=True,
        crcs=task.crcs,
    )
    return read_chunk(read, memory), 0 if cast is None else cast.crc


class _CastDigest:
    """The digest of a cast tensor, as a ``Destination`` that takes every element and keeps none.

    Attributes:
        crc: contribution of the elements that it took.
    """

    def __init__(self, shape: tuple[int, ...], cast: Cast) -> None:
        self.box = Box.full(shape)
        self.crc = 0
        self._cast = cast

    def count_in(self, box: Box) -> int:
        return box.size

    def direct(self, _: Box) -> None:
        """None, since it keeps no elements."""

    def put(self, elements: Array, box: Box) -> CastStats:
        dtype, shape = numpy_dtype(self._cast.dtype), self.box.shape
        for slab, part in slabs(elements, box):
            cast = converted(slab, dtype, saturate=self._cast.saturate)
            self.crc ^= sum_of_box(cast, part, shape)
        return CastStats()
