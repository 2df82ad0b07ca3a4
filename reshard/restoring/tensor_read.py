"""TensorRead: one tensor to restore, the memory that it takes, and the check against the budget.

TensorState: the tensor while it is restored. Restored: its value, and the bytes that were read for it.

Divides the chunks of a restore into jobs: large tensors first, small chunks together, within the budget.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from reshard.checksums.sums import digest_text
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.decode.chunk_reader import StoredChunks, check_recorded, crc_text
from reshard.engine.decode.read_chunk import (
    ChunkMemory,
    ChunkRead,
    ChunkResult,
    quickest_memory,
    stream_memory,
)
from reshard.engine.limits import Limits
from reshard.engine.read_tasks import REQUEST_WEIGHT
from reshard.engine.task import CastStats, SourceChunk
from reshard.errors import CorruptError, MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Index
from reshard.geometry.sizes import format_bytes
from reshard.restoring.outputs import RestoredOutput
from reshard.restoring.regions import (
    Buffer,
    ReadGroup,
    RegionIndex,
    chunk_indices,
    read_groups,
    split_group,
)

MIB = 1 << 20


class TensorRead(Struct, frozen=True):
    """A tensor of a checkpoint, and the output that it becomes.

    Attributes:
        name: in the restored tree.
        dtype: in the restored tree.
        saturate: true if the cast clips values to the largest finite one.
        into: an array to fill with the whole tensor; None for new memory.
    """

    name: str
    stored: StoredTensor
    dtype: str
    output: RestoredOutput
    saturate: bool = False
    into: Any = None

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.stored.spec.dtype

    @property
    def chunks(self) -> StoredChunks:
        return StoredChunks.of(self.stored)

    @property
    def stream_bytes(self) -> int:
        """Memory to read one chunk in a stream."""
        encoding, nbytes = self.stored.encoding, self.stored.spec.chunk_bytes
        return stream_memory(encoding, nbytes, is_cast=self.is_cast).total

    def chunk_memory(self, groups: Iterable[ReadGroup], most_bytes: int) -> ChunkMemory:
        """Memory to read one chunk, if it and the staged buffers of a group may take ``most_bytes``."""
        encoding, nbytes = self.stored.encoding, self.stored.spec.chunk_bytes
        sizes = self.staged_bytes
        staged = max((sum(sizes[n] for n in group) for group in groups), default=0)
        return quickest_memory(encoding, nbytes, most_bytes - staged, is_cast=self.is_cast)

    @property
    def region_bytes(self) -> list[int]:
        """Bytes of each region's buffer."""
        itemsize = storage_bytes(self.dtype)
        return [region.size * itemsize for region in self.output.regions]

    @property
    def staged_bytes(self) -> list[int]:
        """Bytes of each region's buffer that count against the budget; 0 if the buffer becomes the result."""
        return self.region_bytes if self.output.is_staged else [0] * len(self.output.regions)

    @property
    def smallest_bytes(self) -> int:
        """The smallest budget that can restore it: one chunk and one staged buffer."""
        return self.stream_bytes + max(self.staged_bytes, default=0)

    @property
    def covers(self) -> bool:
        """True if this process needs every element."""
        return sum(h.size for h in self.output.regions) == math.prod(self.stored.spec.shape)

    def read_groups(self, max_memory: int) -> tuple[list[ReadGroup], bool]:
        """Groups within the budget, and true if it splits a group, so that chunks are read more than once."""
        whole = read_groups(self.output.regions, self.stored.spec.storage)
        staged, most_bytes = self.staged_bytes, max_memory - self.stream_bytes
        split = [part for group in whole for part in split_group(group, staged, most_bytes)]
        return split, len(split) > len(whole)


def check_memory(reads: Iterable[TensorRead], max_memory: int) -> None:
    """Raises MemoryBudgetError, before anything is read, if the budget is too small for a tensor."""
    largest = max(reads, key=lambda read: read.smallest_bytes, default=None)
    if largest is None or largest.smallest_bytes <= max_memory:
        return
    staged = max(largest.staged_bytes)
    mib = -(-largest.smallest_bytes // MIB)
    raise MemoryBudgetError(
        f"to restore {largest.name!r} takes {format_bytes(largest.stream_bytes)} to decode a chunk "
        f"({largest.stored.encoding.compressor}) and {format_bytes(staged)} for the largest shard on its way "
        f"to a device, but max_memory is {format_bytes(max_memory)}; allow {mib}MiB"
        + ("" if not staged else ", or split it over more devices"),
        smallest_bytes=mib * MIB,
    )


class Restored(Struct, frozen=True):
    """The value of one tensor, and the bytes that were read for it.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of raw chunks, all of any other.
        is_verified: true if its bytes were compared with the recorded digest.
    """

    value: Any
    read_bytes: int
    needed_bytes: int
    cast: CastStats
    is_verified: bool


class TensorState(Struct):
    """A tensor while it is restored.

    Attributes:
        digest: the recorded one; None if there is none, or if not every element is read exactly once.
        crcs: the format's checksums; None under the same conditions, and where there is a digest.
        placed: the result of ``Output.place`` for each region.
        memory: to read one chunk.
        seen: chunks that were read; a chunk is read again if the budget splits a group.
    """

    read: TensorRead
    groups: list[ReadGroup]
    digest: str | None
    crcs: PieceCrcs | None
    placed: list[Any]
    memory: ChunkMemory
    seen: set[Index] = field(default_factory=set)
    crc: int = 0
    stored: int = 0
    cast: CastStats = field(default_factory=CastStats)
    read_bytes: int = 0
    needed_bytes: int = 0

    @classmethod
    def of(cls, read: TensorRead, limits: Limits, verify: bool) -> TensorState:
        groups, is_split = read.read_groups(limits.max_memory)
        is_read_once = verify and read.covers and not is_split
        digest = read.stored.digest if is_read_once else None
        crcs = read.stored.crcs if is_read_once and digest is None else None
        memory = read.chunk_memory(groups, limits.max_memory // limits.workers)
        return cls(read, groups, digest, crcs, [None] * len(read.output.regions), memory)

    def add(self, index: Index, result: ChunkResult) -> None:
        """Adds the result of a chunk; the needed bytes of a chunk that is read twice count once."""
        self.crc ^= result.crc
        self.stored ^= result.stored
        self.cast = self.cast + result.cast
        self.read_bytes += result.read_bytes
        if index not in self.seen or is_seekable(self.read.stored.encoding):
            self.needed_bytes += result.needed_bytes
        self.seen.add(index)

    def restored(self) -> Restored:
        """The value; CorruptError if its digest differs from the recorded one."""
        self._check_digest()
        value = self.read.output.assemble(self.placed)
        return Restored(value, self.read_bytes, self.needed_bytes, self.cast, self.is_verified)

    @property
    def is_verified(self) -> bool:
        """True if the bytes that are read are compared with a recorded digest or checksum."""
        return self.digest is not None or self.crcs is not None

    def _check_digest(self) -> None:
        if self.crcs is not None and self.stored != self.crcs.total:
            raise CorruptError(crc_text(self.read.stored.spec.name, self.crcs.crc))
        if self.digest is not None:
            spec = self.read.stored.spec
            found = digest_text(self.crc, spec.nbytes)
            check_recorded(spec.name, found, self.digest)


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
