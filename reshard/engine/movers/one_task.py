"""Runs one task: reads its source chunks, puts their elements into the places of units, writes the target chunks.

A decoded band goes to one unit, or to all units that share the read: of several targets, or of several tensors of one target that
each take a part of it. Every element is decoded once into a band, rearranged (unless it already lies as a
target wants it), and written once to each target. The source's digest is taken from the decoded band, unless it
was recorded and every target has the same (then that is compared in the end). A target's digest is taken
after writing, from the written bytes and their places. Elements that change their order, type or place are summed up by their
places in the target on both sides, as they lie there; the result of a cast is computed a second time. Both ends also sum up the places
of their pieces (see ``checksums/weighted_sums.py`` and ``checksums.sums.coverage``).

A small chunk that holds the same elements on all sides is decoded, encoded and written at once. Checkpoints have thousands of
small tensors of one chunk each, and cutting bands into pieces and summing pieces up row by row takes longer than moving so few
bytes.

::

    strategy         action                                                              by
    whole            one small chunk is decoded, encoded and written                     ``move_whole``
    copy             chunks are copied encoded, as they are                              ``pass_to_all``
    scatter          one raw chunk, equal on both sides: the target's file shares the    ``on_shared_blocks``, ``_stream``
                     source's blocks where the file system can, then it is read
    scatter, weave   bands are decoded; their pieces are written to their places         ``_stream`` with a ``PieceSink``
    block            bands are decoded; chunks are assembled in memory and written       ``_stream`` with a ``ChunkSink``
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.checksums.sums import NOTHING, Sums, coverage, coverage_of, sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.checksums.weighted_sums import MODULUS
from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool, lent
from reshard.engine.decode.chunk_reader import ChunkFacts, chunk_bytes, decode_into
from reshard.engine.decode.source_bands import (
    DecoderMemory,
    Interleaved,
    decoded,
    decoder_bytes_of,
    encoded_bytes,
    group_capacity,
    groups,
    is_interleaved,
)
from reshard.engine.error_context import about_target, about_tensor
from reshard.engine.movers.passthrough import on_shared_blocks, pass_to_all
from reshard.engine.output import TaskOutput
from reshard.engine.read_turns import ReadTurns, reading, turns_between
from reshard.engine.task import (
    Result,
    SourceRead,
    Take,
    Task,
    Unit,
    source_element_type,
    target_element_type,
)
from reshard.engine.write.chunk_files import store_chunk
from reshard.engine.write.gathering import GatheringSink, gathered_bytes, wanted_box
from reshard.engine.write.sinks import ChunkSink, PieceSink
from reshard.engine.write.target_digest import TargetDigest, expected_sum
from reshard.errors import CorruptError, StorageError
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece
from reshard.planning.task_cost import BAND_BYTES
from reshard.storage.local.files import OpenFiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


def execute(
    tasks: Sequence[Task], outputs: Sequence[TaskOutput], pool: ArenaPool | None = None
) -> list[list[Result]]:
    """Carries out tasks one after the other; returns the results of the units of each.

    ``outputs`` is by target; ``pool`` lends used buffers (None: fresh ones).
    """
    results: list[list[Result]] = []
    for task in tasks:
        unit, read = task.units[0], task.reads[0]
        with about_tensor(unit.name, source=read.name or unit.name):
            results.append(_read_once(_execute_one(task, outputs, pool)))
    return results


def _read_once(results: list[Result]) -> list[Result]:
    """The results; only the first of each target has the read bytes, for all of them."""
    if len(results) == 1:
        return results
    seen: set[int] = set()
    for number, result in enumerate(results):
        if result.target in seen:
            results[number] = replace(result, read_bytes=0)
        seen.add(result.target)
    return results


def _execute_one(task: Task, outputs: Sequence[TaskOutput], pool: ArenaPool | None) -> list[Result]:
    if task.strategy == "whole":
        encoded = encoded_bytes(task, task.reads[0])
        with lent(pool, _aligned(task.band_bytes) + encoded, task.memory_bytes) as arena:
            return move_whole(task, outputs, arena.take(task.band_bytes), arena.take(encoded))
    if task.strategy == "copy":
        return _pass_on(task, outputs)
    shared = on_shared_blocks(task, outputs[task.units[0].target])
    if shared is not None:
        # If sharing fails, the source is read, and its errors name it.
        with suppress(StorageError, CorruptError):
            return _stream(shared, outputs, pool, is_stored=True)
    return _stream(task, outputs, pool)


def _stream(
    task: Task, outputs: Sequence[TaskOutput], pool: ArenaPool | None, *, is_stored: bool = False
) -> list[Result]:
    """Decodes bands and passes them to all units; ``is_stored``: the target already shares the blocks that are read."""
    sizes = _Buffers.of(task)
    with lent(pool, sizes.total, task.memory_bytes) as arena, _turns(task, outputs) as turns:
        return _transfer(task, outputs, arena, sizes, turns, is_stored=is_stored)


def _turns(task: Task, outputs: Sequence[TaskOutput]) -> AbstractContextManager[ReadTurns | None]:
    """A turn for a task that reads much in a bucket and writes in one.

    Files uploaded in parts are sent while the next task reads, so that their tasks need no turn.
    """
    nbytes = sum([r.stored_bytes for r in task.reads if r.encoding.read_ahead_bytes])
    written = [outputs[unit.target] for unit in task.units]
    return turns_between(nbytes, [output.root for output in written if output.uploads is None])


def _pass_on(task: Task, outputs: Sequence[TaskOutput]) -> list[Result]:
    with ExitStack() as stack:
        files = [stack.enter_context(_open_files(task, unit, outputs)) for unit in task.units]
        return pass_to_all(task, files, [outputs[unit.target] for unit in task.units])


def _open_files(task: Task, unit: Unit, outputs: Sequence[TaskOutput]) -> OpenFiles:
    output = outputs[unit.target]
    return OpenFiles(output.root, task.open_files, makes_files=output.makes_files)


class _Buffers(Struct, frozen=True):
    """The buffers that a task takes from its arena, in bytes.

    Attributes:
        decoded: the bands of all decoders, one behind the other, or all of their chunks.
        encoded: the encoded bytes of one chunk, if chunks are decoded at once. They are not needed while bands
            pass, so that they share that memory.
        band: the rows of several decoders side by side; empty for a single one: its rows are the band.
        scratch: the band's slots as they are written to one target.
        target_rows: the band in the order of one target.
        chunks: target chunks that are assembled whole, of all units.
        gathered: for each unit, the bands that it gathers before it writes them.
    """

    decoded: int
    encoded: int
    band: int
    scratch: int
    target_rows: int
    chunks: int
    gathered: Sequence[int]

    @classmethod
    def of(cls, task: Task) -> _Buffers:
        every = [(read, group) for read in task.reads for group in groups(task, read)]
        band = max((group_capacity(task, *one) for one in every), default=0)
        scattered = [unit for unit in task.units if unit.strategy != "block"]
        pieces = max((_slot_bytes(unit, band) for unit in scattered), default=0)
        blocks = [unit for unit in task.units if unit.strategy == "block"]
        chunks = sum(map(_assembled_bytes, blocks))
        target_rows = max(pieces, BAND_BYTES if blocks else 0)
        decoded_memory = max((decoder_bytes_of(task, *one) for one in every), default=0)
        encoded = max(map(partial(encoded_bytes, task), task.reads), default=0)
        joined = band if is_interleaved(task) else 0
        gathered = [gathered_bytes(task, number) for number in range(len(task.units))]
        return cls(decoded_memory, encoded, joined, pieces, target_rows, chunks, gathered)

    @property
    def total(self) -> int:
        held = self.chunks + sum(map(_aligned, self.gathered))
        return _aligned(self.decoded) + _aligned(self.passing) + held

    @property
    def passing(self) -> int:
        """Bytes in use while bands pass, or while chunks are read, the larger."""
        return max(self.encoded, sum(map(_aligned, (self.band, self.scratch, self.target_rows))))


def _assembled_bytes(unit: Unit) -> int:
    """Bytes of memory in which the chunks of a unit are assembled."""
    return sum(map(_aligned, _target_bytes(unit)))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _cut(memory: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Parts of ``memory`` of these sizes, each with its alignment."""
    starts = accumulate(map(_aligned, sizes), initial=0)
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _slot_bytes(unit: Unit, band: int) -> int:
    itemsize = storage_bytes(unit.dtype)
    return max(band * itemsize // storage_bytes(piece.source_dtype) for piece in unit.pieces)


def _target_bytes(unit: Unit) -> Iterator[int]:
    itemsize = storage_bytes(unit.dtype)
    return (math.prod(chunk.stored_shape) * itemsize for chunk in unit.chunks)


def _transfer(
    task: Task,
    outputs: Sequence[TaskOutput],
    arena: Arena,
    sizes: _Buffers,
    turns: ReadTurns | None,
    *,
    is_stored: bool,
) -> list[Result]:
    decoded_memory, passing = arena.take(sizes.decoded), arena.take(sizes.passing)
    rows, target_rows, scratch = _cut(passing, (sizes.band, sizes.target_rows, sizes.scratch))
    memory = DecoderMemory(decoded_memory, passing[: sizes.encoded], rows)
    with ExitStack() as stack:
        opened_units = []
        changed = {take.unit for read in task.reads for take in read.takes if take.changes}
        for number, unit in enumerate(task.units):
            output, dtype = outputs[unit.target], target_element_type(unit.pieces[0])
            digest = TargetDigest(unit.shape, dtype, target_rows, is_weighted=number in changed)
            sink: ChunkSink | PieceSink
            if unit.strategy == "block":
                sink = ChunkSink(unit, output, digest, arena)
            else:
                files = stack.enter_context(_open_files(task, unit, outputs))
                kind = GatheringSink if sizes.gathered[number] else PieceSink
                sink = kind(unit, files, digest, scratch, is_stored=is_stored, keep=output.keep)
                if isinstance(sink, GatheringSink):
                    sink.gather_in(arena.take(sizes.gathered[number]), wanted_box(task, number))
            opened_units.append(OpenUnit(unit, sink, output.name, [NOTHING] * len(unit.pieces)))
        with reading(turns):
            for read in task.reads:
                _pass_bands(
                    task, read, memory, [PieceCopier.of(take, opened_units) for take in read.takes]
                )
        return [opened.result(task) for opened in opened_units]


def _pass_bands(
    task: Task, read: SourceRead, memory: DecoderMemory, copiers: Sequence[PieceCopier]
) -> None:
    """Decodes every band of a read once and puts it into each target; sums it up unless the source recorded its digest."""
    is_recorded = read.is_recorded and not any(copier.take.changes for copier in copiers)
    for copier in copiers:
        copier.opened.is_recorded = is_recorded
    for group in groups(task, read):
        for band, box in decoded(task, read, group, memory, in_rows=not is_recorded):
            for copier in copiers:
                copier.find(band, box)
            if isinstance(band, Interleaved) or is_recorded:
                for copier in copiers:
                    copier.put()
                    copier.add(0)
            else:
                _put_and_sum(read, band, box, copiers)


def _put_and_sum(read: SourceRead, band: Array, box: Box, copiers: Sequence[PieceCopier]) -> None:
    """Puts a band into every target's place, and sums it up on both sides."""
    # In this order: a band that changes in memory after its first sum is not what is expected once it is written.
    expected = [copier.expected() if copier.take.changes else 0 for copier in copiers]
    sources = _sources(read, band, box, copiers)
    stored = [copier.stored(read.crcs, read.shape) for copier in copiers]
    for copier in copiers:
        copier.put()
    for copier, *sums in zip(copiers, sources, stored, expected, strict=True):
        copier.add(*sums)


def _sources(read: SourceRead, band: Array, box: Box, copiers: Sequence[PieceCopier]) -> list[int]:
    """The contribution of each unit's part of a band to the source's digest; the whole band is summed up once."""
    takes_all = any(part.is_band for copier in copiers for part in copier.parts)
    whole = sum_of_box(band, box, read.shape) if takes_all else None
    return [copier.summed(read.shape, whole) for copier in copiers]


def move_whole(
    task: Task, outputs: Sequence[TaskOutput], memory: Bytes, encoded: Bytes
) -> list[Result]:
    """Moves the task's one chunk to all its targets, through ``memory``, which holds it decoded.

    ``encoded`` is memory for the encoded bytes, if they are decoded at once. The source's digest is taken
    after decoding, and a target's after writing, both from this memory.
    """
    (read,) = task.reads
    (source,) = read.chunks
    dtype = source_element_type(task.units[0].pieces[0])
    memory = memory[: chunk_bytes(source, read.dtype)]
    decode_into(memory, ChunkFacts.of_read(read), source, encoded)
    elements: Array = memory.view(dtype).reshape(source.stored_shape)
    found = sum_of_box(elements, source.box, read.shape)
    stored = 0 if read.crcs is None else read.crcs.sum_of_box(elements, source.box, read.shape)
    sums = Sums(found, read=coverage_of(source.box), stored=stored)
    return [_written(unit, read, outputs[unit.target], memory, sums) for unit in task.units]


def _written(unit: Unit, read: SourceRead, output: TaskOutput, memory: Bytes, sums: Sums) -> Result:
    (target,), (piece,) = unit.chunks, unit.pieces
    with about_target(output.name), about_tensor(unit.name, source=read.name):
        encoded = store_chunk(unit, target, memory, output)
    target = encoded.target
    elements: Array = encoded.data.view(source_element_type(piece)).reshape(target.box.shape)
    written = Sums(
        target=sum_of_box(elements, target.box, unit.shape), written=coverage_of(target.box)
    )
    return Result(
        unit.tensor,
        unit.number,
        (sums.merge(written),),
        elements.nbytes,
        read.stored_bytes,
        (encoded.stored,),
        target=unit.target,
    )


class OpenUnit(Struct):
    """One unit, filled from decoded bands.

    Attributes:
        name: of the target in errors, if there are several.
        sums: for each piece, the sums of what was read and of what the target must have.
        is_recorded: true if the source's digest was not taken, since it is recorded and the target must have the same.
    """

    unit: Unit
    sink: ChunkSink | PieceSink
    name: str | None
    sums: list[Sums]
    moved_bytes: int = 0
    is_recorded: bool = False

    def result(self, task: Task) -> Result:
        """Stores the assembled chunks; returns the result of the unit."""
        unit = self.unit
        with about_target(self.name), about_tensor(unit.name, source=self.sink.source):
            chunks = tuple(self.sink.close())
        first, *others = self.sums
        first = first.merge(self.sink.sums)
        if self.is_recorded:
            first = replace(first, source=first.target)
        cast = self.sink.cast if any(piece.is_computed for piece in unit.pieces) else None
        return Result(
            unit.tensor,
            unit.number,
            (first, *others),
            self.moved_bytes,
            sum([read.stored_bytes for read in task.reads]),
            chunks,
            cast,
            target=unit.target,
        )


class _Taken(Struct, frozen=True):
    """The part of a band that a unit takes.

    Attributes:
        box: of the piece.
        is_band: true if it is all of the band.
    """

    elements: Array | Interleaved
    box: Box
    is_band: bool


class PieceCopier(Struct):
    """One piece of a unit; it takes a box of each band.

    Attributes:
        dtype: the type in which it views the source's elements.
    """

    take: Take
    piece: Piece
    opened: OpenUnit
    dtype: np.dtype[Any]
    parts: list[_Taken] = field(default_factory=list)

    @classmethod
    def of(cls, take: Take, opened_units: Sequence[OpenUnit]) -> PieceCopier:
        opened = opened_units[take.unit]
        piece = opened.unit.pieces[take.piece]
        return cls(take, piece, opened, source_element_type(piece))

    def find(self, band: Array | Interleaved, box: Box) -> None:
        """Finds its part of a band at ``box`` of the source."""
        if isinstance(band, Interleaved):  # only for copiers of whole bands
            own = box.relative_to(self.piece.source_box.start)
            self.parts = [_Taken(band, own, True)]
        else:
            self.parts = list(self._parts(self.seen(band), box))

    def _parts(self, band: Array, box: Box) -> Iterator[_Taken]:
        for overlap in self.piece.overlaps(box):
            found = overlap.box.intersect(self.take.box)
            if found is None:
                continue
            if overlap.where.shape == box.shape == found.shape:
                yield _Taken(band, found, True)
                continue
            inside = band[overlap.inside.slices].reshape(overlap.shape)[overlap.where.slices]
            yield _Taken(inside[found.relative_to(overlap.box.start).slices], found, False)

    def put(self) -> None:
        """Puts its part into the target."""
        unit, opened = self.opened.unit, self.opened
        with about_target(opened.name), about_tensor(unit.name, source=opened.sink.source):
            for part in self.parts:
                opened.sink.put(self.piece, part.elements, part.box)
                opened.moved_bytes += part.elements.nbytes

    def seen(self, band: Array) -> Array:
        """The band in this copier's dtype: one target may view the same bits as numbers, another only as bits."""
        return band if band.dtype == self.dtype else band.view(self.dtype)

    def summed(self, shape: tuple[int, ...], of_band: int | None) -> int:
        """The contribution of its parts to the digest of a source of ``shape``; ``of_band``: that of the whole band, if known."""
        view, total = self.piece.source_view, 0
        for part in self.parts:
            if part.is_band and of_band is not None:
                total ^= of_band
            elif not isinstance(part.elements, Interleaved):
                place = part.box.shift(self.piece.source_box.start)
                total ^= sum_of_box(part.elements, place, view.shape if view else shape)
        return total

    def stored(self, crcs: PieceCrcs | None, shape: tuple[int, ...]) -> int:
        """The contribution of its parts to the format's own checksum of a source of ``shape``."""
        view, total = self.piece.source_view, 0
        for part in () if crcs is None else self.parts:
            place = part.box.shift(self.piece.source_box.start)
            if crcs is not None and not isinstance(part.elements, Interleaved):
                total ^= crcs.sum_of_box(part.elements, place, view.shape if view else shape)
        return total

    def expected(self) -> int:
        """The weighted sum of its parts at their places in the target; results of a cast are computed a second time."""
        arrays = (
            (p.elements, p.box) for p in self.parts if not isinstance(p.elements, Interleaved)
        )
        return sum(expected_sum(self.piece, elements, box) for elements, box in arrays) % MODULUS

    def add(self, source: int, stored: int = 0, expected: int = 0) -> None:
        """Counts the parts as read once."""
        boxes = (box for part in self.parts for box in self.piece.source_boxes(part.box))
        sums, number = self.opened.sums, self.take.piece
        sums[number] = sums[number].merge(
            Sums(source, read=coverage(boxes), stored=stored, expected=expected)
        )
