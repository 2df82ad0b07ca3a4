"""Digests of stored tensors: each chunk is decoded once, in bounded memory, by all workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.tensor_digest import CRC64NVME, finish, linear_of_box
from reshard.engine.buffers import Arena
from reshard.engine.cast import converted
from reshard.engine.decode.chunk_decoder import ChunkDecoder, StoredChunks, check_stored
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage
from reshard.engine.task import SourceChunk
from reshard.engine.write.expected_digest import slabs
from reshard.errors import FormatError, MemoryBudgetError, StorageError
from reshard.formats.base import Encoding, Reader
from reshard.formats.codecs import decoder_bytes
from reshard.geometry.bands import band_capacity, bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.dtypes import numpy_dtype, opaque_dtype, storage_bytes
from reshard.layout.changes import Cast
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.cost import BAND_BYTES, CAST_SCRATCH_BYTES, TASK_OVERHEAD_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 128


class ReadTask(Struct, frozen=True):
    """Chunks of one tensor whose digest is taken.

    Attributes:
        cast: a cast whose digest is taken too.
    """

    stored: StoredChunks
    shape: tuple[int, ...]
    chunks: tuple[SourceChunk, ...]
    memory_bytes: int
    cast: Cast | None = None


class ReadResult(Struct, frozen=True):
    """Linear contribution of a task's chunks to its tensor's digest.

    Attributes:
        damage: why the chunks could not be read, where the caller collects damage; "" where they could.
        cast_crc: contribution to the digest of the cast tensor.
    """

    name: str
    crc: int
    nbytes: int
    damage: str = ""
    cast_crc: int = 0


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
        damage: where tensors that cannot be read are put, by name, with the first reason; they have
            no digest then. With None the first such tensor is an error.

    Raises CorruptError, naming tensor and chunk, where a chunk does not decode; MemoryBudgetError,
    before anything is read, where ``max_memory`` is too small for one.
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
    """As ``tensor_digests``, and from the same reading the digests of the tensors in ``casts``, cast so."""
    listed = [n for n in reader.tensors if names is None or n in names]
    stored = reader.tensors
    check_memory(((stored[n].spec, stored[n].encoding) for n in listed), limits, _cast_bytes(casts))
    total = sum(stored[n].spec.nbytes for n in listed)
    crcs = dict.fromkeys(listed, 0)
    cast_crcs = {n: 0 for n in listed if n in casts}
    done_bytes = 0
    tasks = (t for n in listed for t in _tasks_or_damage(reader, n, casts.get(n), damage))
    results = run_tasks(
        tasks,
        digest_chunks if damage is None else digest_or_damage,
        lambda t: t.memory_bytes,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )
    with closing(results):
        for done_tasks, result in enumerate(results, 1):
            crcs[result.name] ^= result.crc
            if result.name in cast_crcs:
                cast_crcs[result.name] ^= result.cast_crc
            if damage is not None and result.damage:
                damage.setdefault(result.name, result.damage)
            done_bytes += result.nbytes
            if progress is not None:
                progress(Progress(done_bytes, total, done_tasks, done_tasks, result.name, stage))
    lost = damage or {}
    return Digests(
        {n: _finished(c, stored[n].spec) for n, c in crcs.items() if n not in lost},
        {
            n: _finished(c, replace(stored[n].spec, dtype=casts[n].dtype))
            for n, c in cast_crcs.items()
            if n not in lost
        },
    )


def _finished(crc: int, spec: TensorSpec) -> str:
    return f"{finish(CRC64NVME, crc, spec.nbytes):016x}"


def _cast_bytes(casts: Mapping[str, Cast] | Cast | None) -> int:
    return CAST_SCRATCH_BYTES if casts else 0


def _tasks_or_damage(
    reader: Reader, name: str, cast: Cast | None, damage: dict[str, str] | None
) -> Iterator[ReadTask]:
    """The tensor's tasks, up to the first chunk that cannot be located; its reason goes into ``damage``."""
    try:
        yield from _tasks(reader, name, cast)
    except (FormatError, StorageError) as error:
        if damage is None:
            raise
        damage.setdefault(name, str(error))


def _tasks(reader: Reader, name: str, cast: Cast | None) -> Iterator[ReadTask]:
    tensor = reader.tensors[name]
    spec = tensor.spec
    stored = StoredChunks.of(tensor)
    need = _need(spec, tensor.encoding) + _cast_bytes(cast)
    per_task = max(1, min(BATCH_CHUNKS, BATCH_BYTES // max(1, spec.chunk_bytes)))
    indices_left = spec.storage.indices()
    while indices := tuple(itertools.islice(indices_left, per_task)):
        chunks = tuple(SourceChunk.at(index, spec, reader) for index in indices)
        yield ReadTask(stored, spec.shape, chunks, need, cast)


def check_memory(
    tensors: Iterable[tuple[TensorSpec, Encoding]], limits: Limits, more_bytes: int = 0
) -> None:
    """Raises MemoryBudgetError where a chunk of one of the tensors cannot be decoded within the limits.

    ``more_bytes`` are needed besides.
    """
    needs = (
        (_need(spec, encoding) + more_bytes, spec.name, encoding) for spec, encoding in tensors
    )
    need, name, encoding = max(needs, key=itemgetter(0), default=(0, "", Encoding()))
    if need > limits.max_memory:
        mib = -(-need // (1 << 20))
        raise MemoryBudgetError(
            f"to read {name!r}, of which a chunk is decoded as a whole ({encoding.compressor}), takes {mib} MiB, "
            f"but {limits.max_memory / (1 << 20):.4g} MiB are allowed; allow max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )


def _need(spec: TensorSpec, encoding: Encoding) -> int:
    band = min(spec.chunk_bytes, BAND_BYTES)
    return decoder_bytes(encoding, spec.chunk_bytes) + band + TASK_OVERHEAD_BYTES


def digest_or_damage(task: ReadTask) -> ReadResult:
    """As ``digest_chunks``, but damage is a result, not an error."""
    try:
        return digest_chunks(task)
    except (FormatError, StorageError) as error:
        nbytes = sum(chunk.box.size for chunk in task.chunks) * storage_bytes(task.stored.dtype)
        return ReadResult(task.stored.name, 0, nbytes, str(error))


def digest_chunks(task: ReadTask) -> ReadResult:
    """Decodes the task's chunks and sums them up."""
    itemsize = storage_bytes(task.stored.dtype)
    crc = cast_crc = nbytes = 0
    for chunk in task.chunks:
        found, cast = _digest_chunk(task, chunk, itemsize)
        crc ^= found
        cast_crc ^= cast
        nbytes += chunk.box.size * itemsize
    return ReadResult(task.stored.name, crc, nbytes, cast_crc=cast_crc)


def _digest_chunk(task: ReadTask, chunk: SourceChunk, itemsize: int) -> tuple[int, int]:
    """The chunk's contributions to the digests of the tensor and of the cast tensor."""
    shape = chunk.stored_shape
    rows = row_bytes(shape, itemsize) or [itemsize]
    memory = Arena(band_capacity(shape, len(shape), rows, BAND_BYTES)).memory
    crc, cast_crc, is_padded = 0, 0, False
    with closing(ChunkDecoder(task.stored, chunk, chunk.box, chunk.box.start)) as decoder:
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            _, part = decoder.read(band, memory, opaque_dtype(itemsize))
            if part is not None:
                view, box = part
                crc ^= linear_of_box(CRC64NVME, view, box, task.shape)
                cast_crc ^= _linear_of_cast(task, view, box)
            is_padded = is_padded or part is None
        decoder.check_end()
    if is_padded:  # the checksum covers the padding too, which was skipped
        check_stored(task.stored, chunk)
    return crc, cast_crc


def _linear_of_cast(task: ReadTask, view: Array, box: Box) -> int:
    """The contribution of the elements to the digest of the cast tensor; 0 without a cast."""
    if task.cast is None:
        return 0
    crc, dtype = 0, numpy_dtype(task.cast.dtype)
    for elements, part in slabs(view.view(numpy_dtype(task.stored.dtype)), box):
        cast = converted(elements, dtype, saturate=task.cast.saturate)
        crc ^= linear_of_box(CRC64NVME, cast, part, task.shape)
    return crc
