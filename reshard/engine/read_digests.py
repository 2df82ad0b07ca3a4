"""Digests of stored tensors: every chunk is decoded once, in bounded memory, on all workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass

from reshard.engine.bands import band_capacity, bands, row_bytes
from reshard.engine.buffers import Arena
from reshard.engine.digest import CRC64NVME, finish, linear_of_box
from reshard.engine.hand_out import hand_out
from reshard.engine.lanes import Lane, StoredChunks
from reshard.engine.opaque import opaque_dtype
from reshard.engine.report import Progress
from reshard.engine.task import SourceChunk
from reshard.formats.base import Reader, StoredTensor
from reshard.formats.codecs import decoder_bytes
from reshard.layout.dtypes import storage_bytes
from reshard.planning.cost import BAND_BYTES

BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 128
TASK_OVERHEAD_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What reading may use; ``executor`` None makes threads for the time of the reading."""

    max_memory: int
    workers: int
    executor: Executor | None = None


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Chunks of one tensor of which the digest is wanted."""

    stored: StoredChunks
    shape: tuple[int, ...]
    chunks: tuple[SourceChunk, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Linear contribution of a task's chunks to its tensor's digest."""

    name: str
    crc: int
    nbytes: int


def tensor_digests(
    reader: Reader,
    limits: ReadLimits,
    names: Collection[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, str]:
    """CRC-64/NVME of each named tensor's row-major bytes as they are stored now, 16 hex digits.

    Raises CorruptError, naming tensor and chunk, where a chunk does not decode.
    """
    wanted = [n for n in reader.tensors if names is None or n in names]
    total = sum(reader.tensors[n].spec.nbytes for n in wanted)
    crcs = dict.fromkeys(wanted, 0)
    done_bytes = 0
    tasks = (t for n in wanted for t in _tasks(reader, n))
    results = hand_out(
        tasks,
        digest_chunks,
        lambda t: t.memory_bytes,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )
    for done_tasks, result in enumerate(results, 1):
        crcs[result.name] ^= result.crc
        done_bytes += result.nbytes
        if progress is not None:
            progress(
                Progress(done_bytes, total, done_tasks, done_tasks, result.name, "reading back")
            )
    return {
        n: f"{finish(CRC64NVME, c, reader.tensors[n].spec.nbytes):016x}" for n, c in crcs.items()
    }


def _tasks(reader: Reader, name: str) -> Iterator[ReadTask]:
    tensor = reader.tensors[name]
    spec = tensor.spec
    stored = StoredChunks(name, spec.dtype, tensor.encoding, tensor.fill)
    per_task = max(1, min(BATCH_CHUNKS, BATCH_BYTES // max(1, _largest_chunk_bytes(tensor))))
    indices_left = spec.storage.indices()
    while indices := tuple(itertools.islice(indices_left, per_task)):
        chunks = tuple(
            SourceChunk(i, reader.locate(name, i), spec.storage.box(i), spec.stored_shape(i))
            for i in indices
        )
        yield ReadTask(stored, spec.shape, chunks, _need(tensor))


def _largest_chunk_bytes(tensor: StoredTensor) -> int:
    nbytes = tensor.spec.itemsize
    for n in tensor.spec.chunk_shape or tensor.spec.storage.largest:
        nbytes *= n
    return nbytes


def _need(tensor: StoredTensor) -> int:
    chunk = _largest_chunk_bytes(tensor)
    return decoder_bytes(tensor.encoding, chunk) + min(chunk, BAND_BYTES) + TASK_OVERHEAD_BYTES


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
    crc = 0
    with closing(Lane(task.stored, chunk, chunk.box, chunk.box.start)) as lane:
        for band in bands(shape, len(shape), rows, BAND_BYTES):
            part = lane.read(band, memory[: lane.nbytes(band)], opaque_dtype(itemsize))
            if part is not None:
                view, box = part
                crc ^= linear_of_box(CRC64NVME, view, box, task.shape)
        lane.check_end()
    return crc
