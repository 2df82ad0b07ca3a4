"""Runs one task: reads its source chunks, puts the pieces in their places, writes its target chunks.

What is decoded goes to one target, or to as many as share the read. Every element is decoded once
into a band, rearranged (not at all where it already lies as a target wants it), and written once to
each. The source's digest is taken from the decoded band, unless it was recorded and every target has
the same (then that is compared in the end); a target's from the bytes that are written and the place
they are written to, after they were. What a cast or another order of axes must give is
made a second time, and both ends sum up the places of their pieces (see ``expected`` and
``coverage``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.coverage import PRIME, coverage_of
from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool, lent
from reshard.engine.decode.interleave import Interleaved
from reshard.engine.decode.source_bands import (
    DecoderMemory,
    decoded,
    decoder_bytes_of,
    encoded_bytes,
    group_capacity,
    groups,
    is_interleaved,
)
from reshard.engine.error_context import about_target, about_tensor
from reshard.engine.movers.passthrough import pass_to_all
from reshard.engine.movers.single_chunk import move_whole
from reshard.engine.output import TaskOutput
from reshard.engine.read_turns import ReadTurns, reading, turns_between
from reshard.engine.task import (
    ChunkPart,
    Task,
    TaskResult,
    source_element_type,
    target_element_type,
)
from reshard.engine.write.expected_digest import changes_bytes, expected_crc
from reshard.engine.write.sinks import ChunkSink, PieceSink
from reshard.engine.write.target_digest import TargetDigest
from reshard.errors import VerificationError
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes
from reshard.planning.cost import BAND_BYTES
from reshard.storage.local.files import OpenFiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


def execute(
    tasks: Sequence[Task], outputs: Sequence[TaskOutput], pool: ArenaPool | None = None
) -> list[TaskResult]:
    """Carries out tasks one after the other, each with those beside it; a result of each, in order.

    ``outputs`` is by target; ``pool`` lends buffers that were used before (None: fresh ones).
    """
    results: list[TaskResult] = []
    for task in tasks:
        with about_tensor(task.placement.target, source=task.placement.source):
            results += _execute_one(task, outputs, pool)
    return results


def _execute_one(
    task: Task, outputs: Sequence[TaskOutput], pool: ArenaPool | None
) -> list[TaskResult]:
    if task.strategy == "whole":
        encoded = encoded_bytes(task)
        with lent(pool, _aligned(task.band_bytes) + encoded, task.memory_bytes) as arena:
            return move_whole(task, outputs, arena.take(task.band_bytes), arena.take(encoded))
    if task.strategy == "copy":
        return _pass_on(task, outputs)
    sizes = _Buffers.of(task)
    with lent(pool, sizes.total, task.memory_bytes) as arena, _turns(task, outputs) as turns:
        return _transfer(task, outputs, arena, sizes, turns)


def _turns(task: Task, outputs: Sequence[TaskOutput]) -> AbstractContextManager[ReadTurns | None]:
    """A turn in which the task reads first, where it reads much in a bucket and writes in one.

    Files that are uploaded in parts are sent while the next task reads, so these tasks need no turn.
    """
    is_far = task.source_encoding.read_ahead_bytes > 0
    nbytes = sum(s.extent.length for s in task.sources if s.extent) if is_far else 0
    written = [outputs[t.target] for t in task.all]
    return turns_between(nbytes, [output.root for output in written if output.uploads is None])


def _pass_on(task: Task, outputs: Sequence[TaskOutput]) -> list[TaskResult]:
    with ExitStack() as stack:
        files = [stack.enter_context(_open_files(t, outputs)) for t in task.all]
        return pass_to_all(task.all, files, [outputs[t.target] for t in task.all])


def _open_files(task: Task, outputs: Sequence[TaskOutput]) -> OpenFiles:
    output = outputs[task.target]
    return OpenFiles(output.root, task.open_files, is_there=output.is_attempt)


class _Buffers(Struct, frozen=True):
    """What a task takes from its arena, in bytes.

    Attributes:
        decoded: the bands of all decoders, one behind the other, or all of their chunks.
        encoded: what is read of one chunk, where chunks are decoded at once. That is over before bands pass, so
            that it shares their memory.
        band: the rows of several decoders side by side; nothing for a single one, whose rows are the band.
        scratch: the band's pieces as they are written to one target.
        target_rows: the band as one target has it.
        chunks: target chunks that are assembled whole, of all targets.
    """

    decoded: int
    encoded: int
    band: int
    scratch: int
    target_rows: int
    chunks: int

    @classmethod
    def of(cls, task: Task) -> _Buffers:
        band = max((group_capacity(task, group) for group in groups(task)), default=0)
        pieces = max((_piece_bytes(t, band) for t in task.all if t.strategy != "block"), default=0)
        blocks = [t for t in task.all if t.strategy == "block"]
        chunks = sum(_aligned(nbytes) for t in blocks for nbytes in _target_bytes(t))
        target_rows = max(pieces, BAND_BYTES if blocks else 0)
        decoded_memory = max((decoder_bytes_of(task, group) for group in groups(task)), default=0)
        joined = band if is_interleaved(task) else 0
        return cls(decoded_memory, encoded_bytes(task), joined, pieces, target_rows, chunks)

    @property
    def total(self) -> int:
        return _aligned(self.decoded) + _aligned(self.passing) + self.chunks

    @property
    def passing(self) -> int:
        """What is in use while bands pass, or else while chunks are read."""
        return max(self.encoded, sum(map(_aligned, (self.band, self.scratch, self.target_rows))))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _cut(memory: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Parts of ``memory`` of these sizes, each aligned as it is."""
    starts = accumulate(map(_aligned, sizes), initial=0)
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _piece_bytes(task: Task, band: int) -> int:
    placement = task.placement
    return band * storage_bytes(placement.target_dtype) // storage_bytes(placement.source_dtype)


def _target_bytes(task: Task) -> Iterator[int]:
    itemsize = storage_bytes(task.placement.target_dtype)
    return (math.prod(t.stored_shape) * itemsize for t in task.targets)


def _transfer(
    task: Task,
    outputs: Sequence[TaskOutput],
    arena: Arena,
    sizes: _Buffers,
    turns: ReadTurns | None,
) -> list[TaskResult]:
    decoded_memory, passing = arena.take(sizes.decoded), arena.take(sizes.passing)
    rows, target_rows, scratch = _cut(passing, (sizes.band, sizes.target_rows, sizes.scratch))
    memory = DecoderMemory(decoded_memory, passing[: sizes.encoded], rows)
    with ExitStack() as stack:
        fills = []
        for one in task.all:
            output = outputs[one.target]
            rows_of_one = TargetDigest(one.target_shape, target_element_type(one), target_rows)
            if one.strategy == "block":
                chunks = ChunkSink(one, output, rows_of_one, arena)
                fills.append(_Filling.of(one, chunks, output.target))
            else:
                files = stack.enter_context(_open_files(one, outputs))
                pieces = PieceSink(one, files, rows_of_one, scratch)
                fills.append(_Filling.of(one, pieces, output.target))
        return _filled(task, memory, fills, turns)


class _Filling(Struct):
    """One target that is filled from what is decoded.

    Attributes:
        target: named in errors, where there are several.
        changes: whether its bytes are others than the source's, so that they are made a second time.
        dtype: as what it sees the source's elements.
    """

    task: Task
    sink: ChunkSink | PieceSink
    target: str | None
    changes: bool
    dtype: np.dtype[Any]
    expected: int = 0

    @classmethod
    def of(cls, task: Task, sink: ChunkSink | PieceSink, target: str | None) -> _Filling:
        """A target of which nothing is filled yet."""
        return cls(task, sink, target, changes_bytes(task), source_element_type(task))

    def put(self, band: Array | Interleaved, box: Box) -> None:
        placement = self.task.placement
        with about_target(self.target), about_tensor(placement.target, source=placement.source):
            self.sink.put(band if isinstance(band, Interleaved) else self.seen(band), box)

    def expect(self, band: Array, box: Box) -> None:
        """Makes what the band must give a second time."""
        self.expected ^= expected_crc(self.task, self.seen(band), box)

    def seen(self, band: Array) -> Array:
        """The band as this target takes it: another may see the same bits as numbers, or only as bits."""
        return band if band.dtype == self.dtype else band.view(self.dtype)

    def close(self) -> tuple[ChunkPart, ...]:
        placement = self.task.placement
        with about_target(self.target), about_tensor(placement.target, source=placement.source):
            return tuple(self.sink.close())


def _filled(
    task: Task, memory: DecoderMemory, fills: Sequence[_Filling], turns: ReadTurns | None
) -> list[TaskResult]:
    """Decodes every band once and puts it into each target; computes its digest unless the source recorded one."""
    digest = moved = cover = 0
    is_recorded = all(fill.task.is_recorded and not fill.changes for fill in fills)
    with reading(turns):
        for group in groups(task):
            for band, box in decoded(task, group, memory, in_rows=not is_recorded):
                moved += band.nbytes
                cover += coverage_of(box)
                if isinstance(band, Interleaved) or is_recorded:
                    for fill in fills:
                        fill.put(band, box)
                else:
                    digest ^= _put_and_sum(task, band, box, fills)
    read = sum(s.extent.length for s in task.sources if s.extent)
    return [
        TaskResult(
            fill.task.move,
            fill.sink.digest if is_recorded else digest,
            fill.sink.digest,
            moved,
            read,
            parts,
            fill.sink.cast,
            expected_crc=fill.expected if fill.changes else None,
            source_cover=cover % PRIME,
            target_cover=fill.sink.cover % PRIME,
        )
        for fill, parts in [(fill, fill.close()) for fill in fills]
    ]


def _put_and_sum(task: Task, band: Array, box: Box, fills: Sequence[_Filling]) -> int:
    """Puts a band into every target's place; what it adds to the source's digest."""
    crc = linear_of_box(CRC64NVME, band, box, task.placement.shape)
    for fill in fills:
        fill.put(band, box)
    changed = [fill for fill in fills if fill.changes]
    if changed:
        _check_unchanged(task, band, box, crc)
    for fill in changed:
        fill.expect(band, box)
    return crc


def _check_unchanged(task: Task, band: Array, box: Box, crc: int) -> None:
    """What is expected is made from the band, which must still be what was decoded."""
    if linear_of_box(CRC64NVME, band, box, task.placement.shape) != crc:
        raise VerificationError(
            f"{task.placement.target!r}: the elements at {box} changed in memory between decoding and writing; "
            "the output was discarded; check this machine's memory, then run again"
        )
