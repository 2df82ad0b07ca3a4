"""Divides the chunks of a restore into jobs: large tensors first, small chunks together, within the budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.engine.decode.read_chunk import ChunkRead
from reshard.engine.read_tasks import REQUEST_WEIGHT
from reshard.engine.task import SourceChunk
from reshard.formats.base import Reader
from reshard.restoring.regions import Buffer, ReadGroup, RegionIndex, chunk_indices
from reshard.restoring.tensor_read import TensorState

JOB_BYTES = 4 << 20
JOB_CHUNKS = 64
"""Small chunks share a job: handing over a job costs as much as reading 100 KiB."""


class OpenGroup:
    """A group while its buffers are filled; the worker that reads the last chunk places them."""

    def __init__(self, state: TensorState, group: ReadGroup, chunks: int) -> None:
        read = state.read
        self.state = state
        self._chunks_left = chunks
        self._lock = threading.Lock()
        self.buffers = {
            n: Buffer(
                read.output.regions[n],
                read.stored.spec.dtype,
                read.dtype,
                saturate=read.saturate,
                into=read.into,
            )
            for n in group
        }

    def end_chunk(self) -> None:
        """Counts one chunk as read; places the buffers after the last."""
        with self._lock:
            self._chunks_left -= 1
            if self._chunks_left > 0:
                return
        self.place()

    def place(self) -> None:
        """Places every buffer and drops it."""
        output, placed = self.state.read.output, self.state.placed
        while self.buffers:
            number, buffer = self.buffers.popitem()
            placed[number] = output.place(number, buffer.array)


class ReadStep(Struct, frozen=True):
    """One chunk of a group; ``read`` is None if the group needs no chunk."""

    opened: OpenGroup
    read: ChunkRead | None
    nbytes: int


class Job(Struct, frozen=True):
    """Steps that one worker runs in order; they take ``memory_bytes`` until the last one ends.

    Attributes:
        arena_bytes: those of them in which the largest chunk is decoded.
    """

    steps: tuple[ReadStep, ...]
    memory_bytes: int
    arena_bytes: int


def read_jobs(states: Sequence[TensorState], reader: Reader, max_memory: int) -> Iterator[Job]:
    """A job for every needed chunk; buffers are allocated when the job with their first chunk is made.

    Large tensors come first, so that no worker is left with one at the end; small ones share jobs.
    """
    batch = _Batch()
    for steps, staged, stream in _bundles(states, reader):
        if batch.steps and batch.need(staged, stream) > max_memory:
            yield batch.job()
            batch = _Batch()
        batch.add(steps, staged, stream)
        if batch.is_full:
            yield batch.job()
            batch = _Batch()
    if batch.steps:
        yield batch.job()


class _Batch:
    """Steps collected for one job, and the memory that they take beside their results."""

    def __init__(self) -> None:
        self.steps: list[ReadStep] = []
        self._staged = self._stream = self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return self._nbytes >= JOB_BYTES or len(self.steps) >= JOB_CHUNKS

    def need(self, staged: int, stream: int) -> int:
        """Memory of the batch after this addition."""
        return self._staged + staged + max(self._stream, stream)

    def add(self, steps: Sequence[ReadStep], staged: int, stream: int) -> None:
        self.steps += steps
        self._staged += staged
        self._stream = max(self._stream, stream)
        self._nbytes += sum(step.nbytes + _waiting_weight(step) for step in steps)

    def job(self) -> Job:
        arena_bytes = max(step.opened.state.memory.arena for step in self.steps)
        return Job(tuple(self.steps), self._staged + self._stream, arena_bytes)


def _waiting_weight(step: ReadStep) -> int:
    """Bytes that a step counts for its request: where requests take long, workers should wait side by side."""
    encoding = step.opened.state.read.stored.encoding
    return REQUEST_WEIGHT if encoding.read_ahead_bytes and step.read is not None else 0


def _bundles(
    states: Sequence[TensorState], reader: Reader
) -> Iterator[tuple[list[ReadStep], int, int]]:
    """Steps that must stay in one job, with the bytes of their staged buffers and of one stream."""
    for state in _in_order(states):
        sizes, stream = state.read.staged_bytes, state.memory.total
        for group in state.groups:
            staged = sum(sizes[n] for n in group)
            steps = _steps(state, group, reader)
            if staged:
                yield list(steps), staged, stream
            else:
                yield from (([step], 0, stream) for step in steps)


def _in_order(states: Sequence[TensorState]) -> list[TensorState]:
    def size(state: TensorState) -> int:
        nbytes = state.read.stored.spec.nbytes
        return nbytes if nbytes > JOB_BYTES else 0

    return sorted(states, key=size, reverse=True)


def _steps(state: TensorState, group: ReadGroup, reader: Reader) -> Iterator[ReadStep]:
    read, spec = state.read, state.read.stored.spec
    regions = read.output.regions
    indices = chunk_indices(regions, group, spec.storage)
    opened = OpenGroup(state, group, len(indices))
    if not indices:
        yield ReadStep(opened, None, 0)
    touching = RegionIndex(regions, group, spec.shape)
    for index in indices:
        yield _step(state, opened, touching, SourceChunk.at(index, spec, reader))


def _step(
    state: TensorState, opened: OpenGroup, touching: RegionIndex, chunk: SourceChunk
) -> ReadStep:
    read = state.read
    buffers = tuple(opened.buffers[n] for n in touching.touching(chunk.box))
    shape = read.stored.spec.shape if state.is_verified else None
    nbytes = sum(buffer.count_in(chunk.box) for buffer in buffers) * read.stored.spec.itemsize
    found = ChunkRead(read.chunks, chunk, buffers, read.is_cast, shape, crcs=state.crcs)
    return ReadStep(opened, found, nbytes)
