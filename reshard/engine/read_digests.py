"""Digests of stored tensors: every chunk is decoded once, in bounded memory, on all workers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import closing
from operator import itemgetter

from msgspec import Struct

from reshard.engine.bands import band_capacity, bands, row_bytes
from reshard.engine.buffers import Arena
from reshard.engine.digest import CRC64NVME, finish, linear_of_box
from reshard.engine.hand_out import hand_out
from reshard.engine.lanes import Lane, StoredChunks
from reshard.engine.opaque import opaque_dtype
from reshard.engine.report import Progress, Stage
from reshard.engine.task import SourceChunk
from reshard.errors import FormatError, MemoryBudgetError, StorageError
from reshard.formats.base import Encoding, Reader
from reshard.formats.codecs import decoder_bytes
from reshard.formats.codecs.source import Source
from reshard.layout.dtypes import storage_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.cost import BAND_BYTES, TASK_OVERHEAD_BYTES

BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 128


class ReadLimits(Struct, frozen=True):
    """What reading may use; ``executor`` None makes threads for the time of the reading."""

    max_memory: int
    workers: int
    executor: Executor | None = None


class ReadTask(Struct, frozen=True):
    """Chunks of one tensor of which the digest is wanted."""

    stored: StoredChunks
    shape: tuple[int, ...]
    chunks: tuple[SourceChunk, ...]
    memory_bytes: int


class ReadResult(Struct, frozen=True):
    """Linear contribution of a task's chunks to its tensor's digest.

    Attributes:
        damage: why they could not be read, where that is asked for instead of an error.
    """

    name: str
    crc: int
    nbytes: int
    damage: str = ""


def tensor_digests(
    reader: Reader,
    limits: ReadLimits,
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
    wanted = [n for n in reader.tensors if names is None or n in names]
    check_memory(((reader.tensors[n].spec, reader.tensors[n].encoding) for n in wanted), limits)
    total = sum(reader.tensors[n].spec.nbytes for n in wanted)
    crcs = dict.fromkeys(wanted, 0)
    done_bytes = 0
    tasks = (t for n in wanted for t in _tasks_or_damage(reader, n, damage))
    results = hand_out(
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
            if damage is not None and result.damage:
                damage.setdefault(result.name, result.damage)
            done_bytes += result.nbytes
            if progress is not None:
                progress(Progress(done_bytes, total, done_tasks, done_tasks, result.name, stage))
    return {
        n: f"{finish(CRC64NVME, c, reader.tensors[n].spec.nbytes):016x}"
        for n, c in crcs.items()
        if n not in (damage or ())
    }


def _tasks_or_damage(
    reader: Reader, name: str, damage: dict[str, str] | None
) -> Iterator[ReadTask]:
    """The tensor's tasks; where a chunk cannot be located no more of them, and the reason is kept."""
    try:
        yield from _tasks(reader, name)
    except (FormatError, StorageError) as error:
        if damage is None:
            raise
        damage.setdefault(name, str(error))


def _tasks(reader: Reader, name: str) -> Iterator[ReadTask]:
    tensor = reader.tensors[name]
    spec = tensor.spec
    stored = StoredChunks(name, spec.dtype, tensor.encoding, tensor.fill)
    per_task = max(1, min(BATCH_CHUNKS, BATCH_BYTES // max(1, _largest_chunk_bytes(spec))))
    indices_left = spec.storage.indices()
    while indices := tuple(itertools.islice(indices_left, per_task)):
        chunks = tuple(
            SourceChunk(i, reader.locate(name, i), spec.storage.box(i), spec.stored_shape(i))
            for i in indices
        )
        yield ReadTask(stored, spec.shape, chunks, _need(spec, tensor.encoding))


def check_memory(tensors: Iterable[tuple[TensorSpec, Encoding]], limits: ReadLimits) -> None:
    """Raises MemoryBudgetError where a chunk of one of the tensors cannot be decoded within the limits."""
    needs = ((_need(spec, encoding), spec.name, encoding) for spec, encoding in tensors)
    need, name, encoding = max(needs, key=itemgetter(0), default=(0, "", Encoding()))
    if need > limits.max_memory:
        mib = -(-need // (1 << 20))
        raise MemoryBudgetError(
            f"to read {name!r}, of which a chunk is decoded as a whole ({encoding.compressor}), takes {mib} MiB, "
            f"but {limits.max_memory / (1 << 20):.4g} MiB are allowed; allow max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )


def _largest_chunk_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.chunk_shape or spec.storage.largest) * spec.itemsize


def _need(spec: TensorSpec, encoding: Encoding) -> int:
    chunk = _largest_chunk_bytes(spec)
    return decoder_bytes(encoding, chunk) + min(chunk, BAND_BYTES) + TASK_OVERHEAD_BYTES


def digest_or_damage(task: ReadTask) -> ReadResult:
    """As ``digest_chunks``, but what cannot be read is a result too."""
    try:
        return digest_chunks(task)
    except (FormatError, StorageError) as error:
        nbytes = sum(chunk.box.size for chunk in task.chunks) * storage_bytes(task.stored.dtype)
        return ReadResult(task.stored.name, 0, nbytes, str(error))


def digest_chunks(task: ReadTask) -> ReadResult:
    """Decodes the task's chunks and sums them up."""
    itemsize = storage_bytes(task.stored.dtype)
    crc = nbytes = 0
    for chunk in task.chunks:
        crc ^= _digest_chunk(task, chunk, itemsize)
        nbytes += chunk.box.size * itemsize
    return ReadResult(task.stored.name, crc, nbytes)


def _digest_chunk(task: ReadTask, chunk: SourceChunk, itemsize: int) -> int:
    shape = chunk.stored_shape
    rows = row_bytes(shape, itemsize) or [itemsize]
    memory = Arena(band_capacity(shape, len(shape), rows, BAND_BYTES)).memory
    crc, is_padded = 0, False
    with closing(Lane(task.stored, chunk, chunk.box, chunk.box.start)) as lane:
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            _, part = lane.read(band, memory, opaque_dtype(itemsize))
            if part is not None:
                view, box = part
                crc ^= linear_of_box(CRC64NVME, view, box, task.shape)
            is_padded = is_padded or part is None
        lane.check_end()
    if is_padded:
        _check_padded(task, chunk)
    return crc


def _check_padded(task: ReadTask, chunk: SourceChunk) -> None:
    """A chunk's checksum is about its padding too, which was passed over."""
    if chunk.extent is None or not task.stored.encoding.checksum:
        return
    where = f"tensor {task.stored.name!r}, chunk {list(chunk.index)}"
    with closing(Source(chunk.extent, where, checksum=True)) as stored:
        stored.read_rest()
        stored.check_trailer()
