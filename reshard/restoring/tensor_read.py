"""TensorRead: one tensor to restore, the memory that it takes, and the check against the budget.

TensorState: the tensor while it is restored. Restored: its value, and the bytes that were read for it. ArraySink: fills its arrays.

Divides the chunks of a restore into batches: large tensors first, small chunks together, within the budget.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.decode.box_plan import (
    ChunkMemory,
    StoredBox,
    is_exact,
    quickest_memory,
    stream_memory,
)
from reshard.engine.decode.chunk_reader import check_recorded, crc_text
from reshard.engine.limits import Limits
from reshard.engine.read_boxes import BoxBatch, BoxUnit, Done
from reshard.engine.read_tasks import REQUEST_WEIGHT
from reshard.engine.task import CastStats
from reshard.errors import CorruptError, MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import SourceChunk, StoredTensor
from reshard.geometry.dtypes import element_dtype, storage_bytes
from reshard.geometry.grid import Box, Index
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

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]

MIB = 1 << 20


class TensorRead(Struct, frozen=True, dict=True):
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

    @cached_property
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

    @cached_property
    def staged_bytes(self) -> Sequence[int]:
        """Bytes of each region's buffer that count against the budget; 0 if the buffer becomes the result."""
        itemsize = storage_bytes(self.dtype) if self.output.is_staged else 0
        return [region.size * itemsize for region in self.output.regions]

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
        placed: the result of ``RestoredOutput.place`` for each region.
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
    digest_sum: int = 0
    crc_sum: int = 0
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

    def add(self, done: Done[ReadPart, ArraySums]) -> None:
        """Adds what was read of a chunk; the needed bytes of an encoded chunk that is read twice count once."""
        found = done.result
        self.digest_sum ^= found.digest_sum
        self.crc_sum ^= found.crc_sum
        self.cast = self.cast + found.cast
        self.read_bytes += done.read_bytes
        (side,) = done.unit.sides
        chunk, encoding = side.chunk, self.read.stored.encoding
        if chunk is None or chunk.extent is None:
            return
        if is_seekable(encoding):
            self.needed_bytes += done.unit.of.nbytes
        elif chunk.index not in self.seen:
            self.needed_bytes += chunk.extent.length
        self.seen.add(chunk.index)

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
        if self.crcs is not None and self.crc_sum != self.crcs.total:
            raise CorruptError(crc_text(self.read.stored.spec.name, self.crcs.crc))
        if self.digest is not None:
            spec = self.read.stored.spec
            found = digest_text(self.digest_sum, spec.nbytes)
            check_recorded(spec.name, found, self.digest)


class OpenGroup:
    """A group while its buffers are filled; the worker that reads the last part places them."""

    def __init__(self, state: TensorState, group: ReadGroup, parts: int) -> None:
        read = state.read
        self.state = state
        self._parts_left = parts
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

    def expect(self, parts: int) -> None:
        """Counts more parts that will be read."""
        with self._lock:
            self._parts_left += parts

    def end_part(self) -> None:
        """Counts one part as read; places the buffers after the last."""
        with self._lock:
            self._parts_left -= 1
            if self._parts_left > 0:
                return
        self.place()

    def place(self) -> None:
        """Places every buffer and drops it."""
        output, placed = self.state.read.output, self.state.placed
        while self.buffers:
            number, buffer = self.buffers.popitem()
            placed[number] = output.place(number, buffer.array)


class ReadPart(Struct, frozen=True):
    """A chunk of a group, or a box of it, and the buffers that take elements of it; no element goes to two.

    Attributes:
        nbytes: of these elements.
    """

    opened: OpenGroup
    buffers: tuple[Buffer, ...]
    nbytes: int


class ArraySums(Struct, frozen=True):
    """Sums of a part that was read: for the tensor's digest, for the format's own checksum, and the loss of casts."""

    digest_sum: int
    crc_sum: int
    cast: CastStats


class ArraySink:
    """Puts the elements of a part into the memory of arrays (a ``BandSink``)."""

    is_dense = False

    def __init__(self, unit: BoxUnit[ReadPart]) -> None:
        self._part = unit.of
        self._state = unit.of.opened.state
        self._has_lent = False
        self._digest_sum = self._crc_sum = 0
        self._cast = CastStats()

    def direct(self, band: Box) -> Bytes | None:
        """The memory of one buffer that the elements of ``band`` fill contiguously; None if there is none."""
        found = (each.direct(band) for each in self._part.buffers)
        memory = next((out for out in found if out is not None), None)
        self._has_lent = memory is not None
        return memory

    def take(self, band: Box, *elements: Array) -> None:
        """Sums up a band if the tensor is verified, and copies it unless it is in its buffer already."""
        (found,), read = elements, self._state.read
        spec = read.stored.spec
        if self._state.is_verified:
            self._digest_sum ^= sum_of_box(found, band, spec.shape)
            if self._state.crcs is not None:
                self._crc_sum ^= self._state.crcs.sum_of_box(found, band, spec.shape)
        if self._has_lent:
            return
        values = found.view(element_dtype(spec.dtype, is_cast=read.is_cast))
        for each in self._part.buffers:
            self._cast = self._cast + each.put(values, band)

    def done(self) -> ArraySums:
        """The sums of the part."""
        self._part.opened.end_part()
        return ArraySums(self._digest_sum, self._crc_sum, self._cast)


BATCH_BYTES = 4 << 20
BATCH_PARTS = 64
"""Small chunks share a batch: handing over a batch costs as much as reading 100 KiB."""


def read_batches(
    states: Sequence[TensorState], reader: Reader, max_memory: int
) -> Iterator[BoxBatch[ReadPart]]:
    """Every needed chunk, in batches; buffers are allocated when the batch with their first chunk is made.

    Large tensors come first, so that no worker is left with one at the end; small ones share batches.
    """
    batch = _Collected()
    for units, staged, stream in _bundles(states, reader):
        if batch.units and batch.need(staged, stream) > max_memory:
            yield batch.batch()
            batch = _Collected()
        batch.add(units, staged, stream)
        if batch.is_full:
            yield batch.batch()
            batch = _Collected()
    if batch.units:
        yield batch.batch()


class _Collected:
    """Units collected for one batch, and the memory that they take beside their results."""

    def __init__(self) -> None:
        self.units: list[BoxUnit[ReadPart]] = []
        self._staged = self._stream = self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return self._nbytes >= BATCH_BYTES or len(self.units) >= BATCH_PARTS

    def need(self, staged: int, stream: int) -> int:
        """Memory of the batch after this addition."""
        return self._staged + staged + max(self._stream, stream)

    def add(self, units: Sequence[BoxUnit[ReadPart]], staged: int, stream: int) -> None:
        self.units += units
        self._staged += staged
        self._stream = max(self._stream, stream)
        self._nbytes += sum([unit.nbytes for unit in units])

    def batch(self) -> BoxBatch[ReadPart]:
        return BoxBatch(tuple(self.units), self._staged + self._stream)


def _bundles(
    states: Sequence[TensorState], reader: Reader
) -> Iterator[tuple[list[BoxUnit[ReadPart]], int, int]]:
    """Units that must stay in one batch, with the bytes of their staged buffers and of one stream."""
    for state in _in_order(states):
        sizes, stream = state.read.staged_bytes, state.memory.total
        for group in state.groups:
            staged = sum(sizes[n] for n in group)
            units = _units(state, group, reader)
            if staged:
                yield list(units), staged, stream
            else:
                yield from (([unit], 0, stream) for unit in units)


def _in_order(states: Sequence[TensorState]) -> list[TensorState]:
    def size(state: TensorState) -> int:
        nbytes = state.read.stored.spec.nbytes
        return nbytes if nbytes > BATCH_BYTES else 0

    return sorted(states, key=size, reverse=True)


def _units(state: TensorState, group: ReadGroup, reader: Reader) -> Iterator[BoxUnit[ReadPart]]:
    stored, regions = state.read.stored, state.read.output.regions
    indices = chunk_indices(regions, group, stored.spec.storage)
    opened = OpenGroup(state, group, len(indices))
    if not indices:
        opened.place()
        return
    touching = RegionIndex(regions, group, stored.spec.shape)
    for index in indices:
        chunk = SourceChunk.at(index, stored.spec, reader)
        buffers = tuple(opened.buffers[n] for n in touching.touching(chunk.box))
        boxes = _boxes_to_read(stored, chunk, buffers)
        opened.expect(len(boxes) - 1)
        for box in boxes:
            yield _unit(
                state, ReadPart(opened, buffers, _wanted_bytes(stored, buffers, box)), chunk, box
            )


def _wanted_bytes(stored: StoredTensor, buffers: Sequence[Buffer], box: Box) -> int:
    return sum([buffer.count_in(box) for buffer in buffers]) * stored.spec.itemsize


def _unit(state: TensorState, part: ReadPart, chunk: SourceChunk, box: Box) -> BoxUnit[ReadPart]:
    stored = state.read.stored
    spec, encoding = stored.spec, stored.encoding
    plan = state.memory.plan(chunk, box, encoding, spec.itemsize)
    # Where requests take long, workers should wait side by side.
    waiting = REQUEST_WEIGHT if encoding.read_ahead_bytes else 0
    side = StoredBox(stored, box, spec.dtype, chunk=chunk)
    return BoxUnit(part, (side,), plan, spec.storage.cuts, part.nbytes + waiting, plan.memory_bytes)


def _boxes_to_read(
    stored: StoredTensor, chunk: SourceChunk, buffers: Sequence[Buffer]
) -> list[Box]:
    """The boxes of the chunk that the buffers need, if they leave gaps and each can be read alone; else one around them."""
    held = (each.box.intersect(chunk.box) for each in buffers)
    boxes = [box for box in held if box is not None]
    whole = Box.around(boxes)
    if sum(box.size for box in boxes) >= whole.size:
        return [whole]
    itemsize = stored.spec.itemsize
    are_alone = all(is_exact(box, chunk, stored.encoding, itemsize) for box in boxes)
    return boxes if are_alone else [whole]
