"""Digests of stored tensors: each chunk is decoded once, in bounded memory, by all workers.

Copies of a slice, which nothing else reads, are compared with the one that is decoded. Ranges with a CRC that hold elements of
several tensors, or hold them in another order, are read once more for that CRC.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import READ_BYTES, range_crc32c
from reshard.checksums.sums import digest_text, sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.buffers import ArenaPool, lent
from reshard.engine.cast import converted
from reshard.engine.decode.chunk_reader import ChunkBuffers, StoredChunks
from reshard.engine.decode.read_chunk import (
    ChunkMemory,
    ChunkRead,
    ChunkResult,
    quickest_memory,
    read_chunk,
    stream_memory,
)
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.read_tasks import REQUEST_WEIGHT
from reshard.engine.recorded_ranges import bytes_of_ranges, checked_ranges, unlike_text
from reshard.engine.task import CastStats, SourceChunk
from reshard.engine.write.target_digest import slabs
from reshard.errors import (
    CorruptError,
    FormatError,
    MemoryBudgetError,
    StorageError,
    VerificationError,
)
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, Extent, StoredTensor, codec_name
from reshard.geometry.dtypes import numpy_dtype, storage_bytes
from reshard.geometry.grid import Box
from reshard.layout.changes import Cast
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.task_cost import CAST_SCRATCH_BYTES
from reshard.storage.location import open_file

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


BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 128
"""The decoded bytes, or the chunks, from which on a task is sent to a worker: sending one costs as much as reading 100 KiB."""


class Digests(Struct, frozen=True):
    """CRC-64/NVME of tensors' row-major bytes, by name, 16 hex digits.

    Attributes:
        stored: as they are stored.
        cast: of the cast tensor, for each cast that was given.
    """

    stored: dict[str, str]
    cast: dict[str, str]


def tensor_digests(
    reader: Reader,
    limits: Limits,
    names: Collection[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    damage: dict[str, str] | None = None,
    stage: Stage = "reading back",
) -> dict[str, str]:
    """CRC-64/NVME of each named tensor's row-major bytes as they are stored now, 16 hex digits.

    Args:
        damage: gets the names of tensors that cannot be read, each with the first reason; they have
            no digest then. With None the first such tensor is an error.

    Raises CorruptError, naming tensor and chunk, if a chunk does not decode or copies of a slice differ;
    MemoryBudgetError, before anything is read, if ``max_memory`` is too small for a chunk.
    """
    return digests_with_casts(
        reader, limits, names, {}, progress, damage=damage, stage=stage
    ).stored


def digests_with_casts(
    reader: Reader,
    limits: Limits,
    names: Collection[str] | None,
    casts: Mapping[str, Cast],
    progress: Callable[[Progress], None] | None = None,
    *,
    damage: dict[str, str] | None = None,
    stage: Stage = "reading back",
) -> Digests:
    """Digests as of ``tensor_digests``, and from the same reading those of the cast tensors of ``casts``."""
    listed = [n for n in reader.tensors if names is None or n in names]
    stored = reader.tensors
    kinds = ((stored[n].spec, stored[n].encoding) for n in listed)
    check_decodable(kinds, limits, CAST_SCRATCH_BYTES if casts else 0)
    sums = {n: _ReadSums.of(stored[n]) for n in listed}
    tell = tell_bytes(_bytes_to_read(reader, listed), stage, progress)
    tasks = (t for n in listed for t in _tasks_or_damage(reader, n, casts.get(n), limits, damage))
    with closing(_results(tasks, limits, keeps_damage=damage is not None)) as results:
        for result in results:
            sums[result.name].add(result)
            _note_damage(result.name, result.damage, damage)
            tell(result.name, result.nbytes)
    for name, found in sums.items():
        _note_damage(name, unlike_text(reader, name) if found.unseen else "", damage)
    _read_besides(reader, listed, limits, tell, damage)
    for name in damage or ():
        sums.pop(name, None)
    return _digests(sums, casts)


def _bytes_to_read(reader: Reader, listed: Sequence[str]) -> int:
    """The bytes of all elements, and of ranges and copies that are read besides."""
    elements = sum(reader.tensors[name].spec.nbytes for name in listed)
    return elements + bytes_of_copies(reader, listed) + bytes_of_ranges(reader, listed)


def _read_besides(
    reader: Reader,
    listed: Sequence[str],
    limits: Limits,
    tell: Callable[[str, int], None],
    damage: dict[str, str] | None,
) -> None:
    """Reads bytes that decoding does not read: copies of slices, and ranges that have a checksum of their own."""
    for copies in compared_copies(reader, listed, limits):
        tell(copies.name, copies.nbytes)
        _note_damage(copies.name, copies.difference, damage)
    for checked in checked_ranges(reader, listed, limits):
        tell(checked.names[0], checked.nbytes)
        for name in checked.names:
            _note_damage(name, checked.damage_of(name), damage)


class _ReadSums(Struct):
    """The sums of the elements that are read of a tensor.

    Attributes:
        crc, cast_crc: linear parts of the digests of the tensor and of the cast tensor.
        unseen: the format's own checksum less the part that was read; 0 if both agree, or if none is recorded.
    """

    spec: TensorSpec
    unseen: int
    crc: int = 0
    cast_crc: int = 0

    @classmethod
    def of(cls, stored: StoredTensor) -> _ReadSums:
        return cls(stored.spec, 0 if stored.crcs is None else stored.crcs.total)

    def add(self, result: DigestResult) -> None:
        self.crc ^= result.crc
        self.cast_crc ^= result.cast_crc
        self.unseen ^= result.stored


def _digests(sums: Mapping[str, _ReadSums], casts: Mapping[str, Cast]) -> Digests:
    return Digests(
        {n: _finished(one.crc, one.spec) for n, one in sums.items()},
        {
            n: _finished(one.cast_crc, replace(one.spec, dtype=casts[n].dtype))
            for n, one in sums.items()
            if n in casts
        },
    )


def _results(
    tasks: Iterator[DigestTask], limits: Limits, *, keeps_damage: bool
) -> Generator[DigestResult, None, None]:
    work = digest_or_damage if keeps_damage else digest_chunks
    pool = ArenaPool(limits.max_memory, limits.workers) if limits.executor is None else None
    return run_tasks(
        tasks,
        work if pool is None else partial(work, pool=pool),
        lambda t: t.memory.total,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )


def _note_damage(name: str, found: str, damage: dict[str, str] | None) -> None:
    """Keeps the first reason why a tensor cannot be read; raises CorruptError if ``damage`` is None."""
    if not found:
        return
    if damage is None:
        raise CorruptError(found)
    damage.setdefault(name, found)


def _finished(crc: int, spec: TensorSpec) -> str:
    return digest_text(crc, spec.nbytes)


def _tasks_or_damage(
    reader: Reader,
    name: str,
    cast: Cast | None,
    limits: Limits,
    damage: dict[str, str] | None,
) -> Iterator[DigestTask]:
    """The tensor's tasks, up to the first chunk that cannot be located; its reason goes into ``damage``."""
    try:
        yield from _tasks(reader, name, cast, limits)
    except (FormatError, StorageError) as error:
        if damage is None:
            raise
        damage.setdefault(name, str(error))


def _tasks(reader: Reader, name: str, cast: Cast | None, limits: Limits) -> Iterator[DigestTask]:
    tensor = reader.tensors[name]
    spec = tensor.spec
    stored = StoredChunks.of(tensor)
    # Without threads that share buffers, filling new memory would cost more than decoding at once gains.
    share = limits.max_memory // limits.workers if limits.executor is None else 0
    memory = quickest_memory(tensor.encoding, spec.chunk_bytes, share, is_cast=cast is not None)
    per_chunk = spec.chunk_bytes + (REQUEST_WEIGHT if tensor.encoding.read_ahead_bytes else 0)
    per_task = max(1, min(BATCH_CHUNKS, BATCH_BYTES // max(1, per_chunk)))
    indices_left = spec.storage.indices()
    while indices := tuple(itertools.islice(indices_left, per_task)):
        chunks = tuple(SourceChunk.at(index, spec, reader) for index in indices)
        yield DigestTask(stored, spec.shape, chunks, memory, cast, tensor.crcs)


def check_decodable(
    tensors: Iterable[tuple[TensorSpec, Encoding]], limits: Limits, more_bytes: int = 0
) -> None:
    """Raises MemoryBudgetError if a chunk of a tensor cannot be decoded within the limits.

    ``more_bytes`` are needed besides.
    """
    needs = (
        (stream_memory(encoding, spec.chunk_bytes).total + more_bytes, spec.name, encoding)
        for spec, encoding in tensors
    )
    need, name, encoding = max(needs, key=itemgetter(0), default=(0, "", Encoding()))
    if need > limits.max_memory:
        mib = -(-need // (1 << 20))
        raise MemoryBudgetError(
            f"to read {name!r}, of which a chunk is decoded as a whole ({codec_name(encoding)}), takes {mib} MiB, "
            f"but {limits.max_memory / (1 << 20):.4g} MiB are allowed; allow max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )


class _Copies(Struct, frozen=True):
    """The places of one slice."""

    name: str
    extents: tuple[Extent, ...]

    @property
    def nbytes(self) -> int:
        return sum(extent.length for extent in self.extents)


class ComparedCopies(Struct, frozen=True):
    """The copies of one slice of a tensor.

    Attributes:
        nbytes: of all copies together.
        difference: the reason why a copy differs from the first one, or cannot be read; "" if all are equal.
    """

    name: str
    nbytes: int
    difference: str


def bytes_of_copies(reader: Reader, names: Collection[str]) -> int:
    """The bytes that ``compared_copies`` reads."""
    return sum(copies.nbytes for copies in _listed(reader, names))


def compared_copies(
    reader: Reader, names: Collection[str], limits: Limits
) -> Iterator[ComparedCopies]:
    """Compares all copies of each slice with the first one, which is also read and checked as the tensor's own."""
    results = run_tasks(
        _listed(reader, names),
        _compared,
        lambda _: READ_BYTES,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )
    with closing(results):
        yield from results


def _listed(reader: Reader, names: Collection[str]) -> Iterator[_Copies]:
    return (_Copies(name, extents) for name in names for extents in reader.copies(name))


def _compared(copies: _Copies) -> ComparedCopies:
    return ComparedCopies(copies.name, copies.nbytes, _difference(copies))


def _difference(copies: _Copies) -> str:
    first, *others = copies.extents
    try:
        expected = _crc32c(first)
        other = next((extent for extent in others if _crc32c(extent) != expected), None)
    except StorageError as error:
        return str(error)
    if other is None:
        return ""
    return (
        f"tensor {copies.name!r}: {other.path} holds other bytes at {other.offset:,} than {first.path} at "
        f"{first.offset:,}, but both should hold the same slice; restore the damaged file from a copy"
    )


def _crc32c(extent: Extent) -> int | None:
    with closing(open_file(extent.path, extent.version)) as file:
        return range_crc32c(file.read, extent.offset, extent.length)
