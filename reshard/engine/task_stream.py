"""Makes tasks from a plan, a batch at a time: chunks are located late, so that a large plan stays small.

Where several targets share a read, the tasks of the others travel with the first one, in its ``beside``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from reshard.engine.output import TargetOutput
from reshard.engine.share import ALL, Range, Share
from reshard.engine.target_run import TargetRun
from reshard.engine.task import SourceChunk, TargetChunk, Task
from reshard.engine.write.file_order import in_order_of_files
from reshard.formats.base import Reader
from reshard.formats.file_map import Place
from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Index
from reshard.planning.move import Move
from reshard.planning.multi_plan import MoveAt, MultiPlan
from reshard.planning.placement import inverse
from reshard.planning.planner import open_files_per_task

T = TypeVar("T")


class BatchLimits(Struct, frozen=True):
    """A batch ends when it decodes ``nbytes``, or has so many tasks."""

    nbytes: int
    tasks: int


BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""Small tasks travel together: handing one over costs as much as moving 100 KiB."""

BATCHES_PER_S = 50
WORKER_BYTES_PER_S = 600 << 20
"""One thread hands out no more batches to many workers, each of which moves about so much (measured: zstd to uncompressed,
``benchmarks.hosts.task_times``)."""

BATCHES_PER_WORKER = 4
"""At least, so that none is left with much work when the others are done."""

MAX_BATCH_TASKS = 4096
"""A batch is made and sent as a whole: 4,096 tasks take some 4 MB."""

REQUEST_WEIGHT = 1 << 20
"""Where requests take long, so much for each task: workers should wait side by side."""


def task_batches(
    plan: MultiPlan,
    reader: Reader,
    targets: Sequence[TargetRun | None],
    share: Share = ALL,
    workers_elsewhere: int = 0,
) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan`` that are not done, in batches; tasks that share a read are one.

    ``targets`` has None for a target that needs no task; ``share`` leaves out what other parts of the conversion do. For
    many ``workers_elsewhere`` batches are larger, so that one thread can hand them out. Large moves come first, so that
    none is left alone at the end, and as many of them in turn as there are workers: two tasks of one move would wait for
    each other at the files they share.
    """
    by_number = {n: target for n, target in enumerate(targets) if target is not None}
    limits = batch_limits(plan.decoded_bytes, workers_elsewhere)
    every = [_Read(plan, read, reader, by_number) for read in plan.reads]
    yield from _by_file([read for read in every if read.is_in_order], share)
    others = [read for read in every if not read.is_in_order]
    reads = list(zip(others, share.ranges([r.decoded_bytes for r in others]), strict=True))
    reads.sort(key=lambda read: -read[0].decoded_bytes)
    large = [(read, of) for read, of in reads if read.decoded_bytes > limits.nbytes]
    streams = [_batched(read.tasks(of), limits) for read, of in large]
    yield from _in_turn(streams, max(plan.workers, workers_elsewhere))
    small = reads[len(streams) :]
    yield from _batched((task for read, of in small for task in read.tasks(of)), limits)


def _in_turn(streams: Sequence[Iterator[T]], width: int) -> Iterator[T]:
    """One element of each of ``width`` streams after the other; a stream that ends makes room for the next."""
    waiting = iter(streams)
    active = deque(itertools.islice(waiting, width))
    while active:
        stream = active.popleft()
        for element in itertools.islice(stream, 1):
            yield element
            active.append(stream)
            break
        else:
            active.extend(itertools.islice(waiting, 1))


def batch_limits(decoded_bytes: int, workers: int) -> BatchLimits:
    """How large batches are: one thread hands out at most ``BATCHES_PER_S``, and each worker gets several.

    With ``workers`` 0 they are threads of one host, between which batches cost next to nothing.

    >>> batch_limits(1 << 30, workers=0)
    BatchLimits(nbytes=4194304, tasks=64)
    >>> batch_limits(1 << 40, workers=256)
    BatchLimits(nbytes=1073741824, tasks=4096)
    """
    if not workers:
        return BatchLimits(BATCH_BYTES, BATCH_TASKS)
    by_rate = workers * WORKER_BYTES_PER_S // BATCHES_PER_S
    by_share = decoded_bytes // (workers * BATCHES_PER_WORKER)
    nbytes = max(BATCH_BYTES, min(by_rate, by_share))
    return BatchLimits(nbytes, min(MAX_BATCH_TASKS, BATCH_TASKS * (nbytes // BATCH_BYTES)))


def _batched(tasks: Iterator[tuple[int, Task]], limits: BatchLimits) -> Iterator[tuple[Task, ...]]:
    """Consecutive tasks, given with their weights, until a batch is heavy or long enough."""
    batch: list[Task] = []
    weight = 0
    for nbytes, task in tasks:
        batch.append(task)
        weight += nbytes
        if weight >= limits.nbytes or len(batch) >= limits.tasks:
            yield tuple(batch)
            batch, weight = [], 0
    if batch:
        yield tuple(batch)


def _by_file(reads: Sequence[_Read], share: Share) -> Iterator[tuple[Task, ...]]:
    """For each file that is written in order, its tasks in that order; files that share chunks go together."""
    for group in _groups(reads, share):
        tasks = tuple(read.task(unit) for read, unit in group if read.is_left(unit))
        if tasks:
            yield tasks


def _groups(reads: Sequence[_Read], share: Share) -> Iterator[list[tuple[_Read, int]]]:
    """The units of each file, in its order, as far as they are of the share."""
    units = [(read, unit) for read in reads for unit in read.units()]
    groups = list(in_order_of_files([read.first_places(unit) for read, unit in units]))
    weights = [sum(units[at][0].unit_bytes for at in group) for group in groups]
    for group, of in zip(groups, share.ranges(weights), strict=True):
        if of.units(1):
            yield [units[at] for at in group]


def share_units(
    plan: MultiPlan, reader: Reader, target: TargetRun, share: Share
) -> Iterator[tuple[int, int]]:
    """The move and the number of each unit of a plan with one target that is of the share, done or not."""
    every = [_Read(plan, read, reader, {0: target}) for read in plan.reads]
    for group in _groups([read for read in every if read.is_in_order], share):
        yield from ((read.first_move, unit) for read, unit in group)
    others = [read for read in every if not read.is_in_order]
    ranges = share.ranges([read.decoded_bytes for read in others])
    for read, of in zip(others, ranges, strict=True):
        yield from ((read.first_move, unit) for unit in of.units(read.count))


def unit_bytes(move: Move, unit: int) -> int:
    """Bytes of the source's elements in a unit."""
    return move.units.box(move.units.index_at(unit)).size * move.source.spec.itemsize


class _Read:
    """The moves of one tensor that share a read, and the tasks that are left of them."""

    __slots__ = ("_moves", "_open_files", "_plan", "_reader", "_targets", "decoded_bytes")

    def __init__(
        self,
        plan: MultiPlan,
        moves: Sequence[MoveAt],
        reader: Reader,
        targets: Mapping[int, TargetRun],
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._targets = targets
        self._moves = [at for at in moves if at.target in targets]
        self._open_files = max(8, open_files_per_task(plan.workers) // 2 // max(1, len(moves)))
        self.decoded_bytes = plan.move(moves[0]).price.decoded_bytes

    @property
    def is_in_order(self) -> bool:
        """Whether its target's chunks must be written in order; then it has one target."""
        return any(self._plan.move(at).target.in_order is not None for at in self._moves)

    @property
    def first_move(self) -> int:
        """The number of its first target's move."""
        return self._moves[0].move

    @property
    def count(self) -> int:
        """How many units it has."""
        return self._plan.move(self._moves[0]).units.count

    @property
    def unit_bytes(self) -> int:
        """About how many bytes each of its tasks decodes."""
        return self.decoded_bytes // max(1, self.count)

    def units(self) -> range:
        """All of its units."""
        return range(self.count)

    def is_left(self, unit: int) -> bool:
        """Whether its one target lacks a unit."""
        return not self._is_done(self._moves[0], unit)

    def first_places(self, unit: int) -> tuple[Place, ...]:
        """Where the first chunk of a unit of its one target is stored."""
        (at,) = self._moves
        move, box = self._plan.move(at), self._box(at, unit)
        spec = move.target.spec
        index = tuple(r.start for r in spec.storage.overlapping(move.placement.to_target(box)))
        return self._targets[at.target].output.places(spec.name, index)

    def task(self, unit: int) -> Task:
        """The task that fills a unit of its one target."""
        return self._task(self._moves, unit, self._box(self._moves[0], unit))

    def _box(self, at: MoveAt, unit: int) -> Box:
        units = self._plan.move(at).units
        return units.box(units.index_at(unit))

    def tasks(self, of: Range) -> Iterator[tuple[int, Task]]:
        """A task for each unit of a range that any target lacks, each with its weight: about how many bytes it decodes."""
        if not self._moves:
            return
        first = self._plan.move(self._moves[0])
        nbytes, units = self.unit_bytes, first.units
        if self._waits_for_answers(first):
            nbytes += REQUEST_WEIGHT
        for unit in of.units(units.count):
            left = [at for at in self._moves if not self._is_done(at, unit)]
            if left:
                yield nbytes, self._task(left, unit, units.box(units.index_at(unit)))

    def _waits_for_answers(self, move: Move) -> bool:
        source = self._reader.tensors[move.placement.source]
        is_local = all(self._targets[at.target].output.is_local for at in self._moves)
        return bool(source.encoding.read_ahead_bytes) or not is_local

    def _is_done(self, at: MoveAt, unit: int) -> bool:
        done = self._targets[at.target].done
        return done is not None and done.has(at.move, unit)

    def _task(self, left: Sequence[MoveAt], number: int, unit: Box) -> Task:
        sources = tuple(_sources(self._plan.move(left[0]), unit, self._reader))
        beside = tuple(self._fill(at, number, unit, sources, ()) for at in left[1:])
        return self._fill(left[0], number, unit, sources, beside)

    def _fill(
        self,
        at: MoveAt,
        number: int,
        unit: Box,
        sources: tuple[SourceChunk, ...],
        beside: tuple[Task, ...],
    ) -> Task:
        move, output = self._plan.move(at), self._targets[at.target].output
        placement = move.placement
        stored = self._reader.tensors[placement.source]
        return Task(
            move=at.move,
            strategy=move.strategy,
            placement=placement,
            unit=unit,
            sources=sources,
            source_encoding=stored.encoding,
            fill=stored.fill,
            targets=tuple(_targets(move, unit, output)),
            target_grid=placement.target_grid(move.target.spec.storage).clip(unit),
            target_encoding=output.encodings[placement.target],
            target_shape=move.target.spec.shape,
            band_bytes=move.band_bytes,
            at_once=move.at_once,
            memory_bytes=move.price.task_bytes,
            open_files=self._open_files,
            unit_number=number,
            target=at.target,
            beside=beside,
            is_recorded=bool(stored.digest)
            and placement.source_box == Box.full(move.source.spec.shape),
        )


def _sources(move: Move, unit: Box, reader: Reader) -> Iterator[SourceChunk]:
    spec = move.source.spec
    grid = spec.storage
    ranges = grid.overlapping(move.placement.to_source(unit))
    for index, box in _boxes(ranges, grid.cuts):
        extent = reader.locate(spec.name, index)
        yield SourceChunk(index, extent, box, spec.chunk_shape or box.shape)


def _targets(move: Move, unit: Box, output: TargetOutput) -> Iterator[TargetChunk]:
    """In the order of the placement's axes, whatever the target's own are."""
    spec, placement = move.target.spec, move.placement
    order, grid = placement.axis_order, spec.storage
    ranges, back = grid.overlapping(placement.to_target(unit)), inverse(order)
    in_order = _boxes([ranges[d] for d in back], [grid.cuts[d] for d in back])
    for turned, turned_box in in_order:
        index, box = tuple(map(turned.__getitem__, order)), turned_box.permute(order)
        places = output.places(spec.name, index)
        yield TargetChunk(index, places, box, spec.chunk_shape or box.shape)


def _boxes(ranges: Sequence[range], cuts: Sequence[Cuts]) -> Iterator[tuple[Index, Box]]:
    """The parts of a grid with these cuts whose indices are in ``ranges``, row-major.

    A large task has hundreds, so each cut is looked up once.
    """
    starts = [c[r.start : r.stop] for c, r in zip(cuts, ranges, strict=True)]
    stops = [c[r.start + 1 : r.stop + 1] for c, r in zip(cuts, ranges, strict=True)]
    indices = itertools.product(*ranges)
    corners = zip(itertools.product(*starts), itertools.product(*stops), strict=True)
    for index, (start, stop) in zip(indices, corners, strict=True):
        yield index, Box(start, stop)
