"""Makes tasks from a plan, a batch at a time: chunks are located late, so that a large plan stays small.

Where several targets share a read, the tasks of the others travel with the first one, in its ``beside``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from reshard.engine.output import TargetOutput
from reshard.engine.target_run import TargetRun
from reshard.engine.task import SourceChunk, TargetChunk, Task
from reshard.engine.write.file_order import in_order_of_files
from reshard.formats.base import Place, Reader
from reshard.geometry.box import Box
from reshard.planning.move import Move
from reshard.planning.multi_plan import MoveAt, MultiPlan
from reshard.planning.planner import open_files_per_task

T = TypeVar("T")

BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""Small tasks travel together: handing one over costs as much as moving 100 KiB."""

REQUEST_WEIGHT = 1 << 20
"""Where requests take long, so much for each task: workers should wait side by side."""


def task_batches(
    plan: MultiPlan, reader: Reader, targets: Sequence[TargetRun | None]
) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan`` that are not done, in batches; tasks that share a read are one.

    ``targets`` has None for a target that needs no task. Large moves come first, so that none is left alone at the end, and as many of them in turn as
    there are workers: two tasks of one move would wait for each other at the files they share.
    """
    by_number = {n: target for n, target in enumerate(targets) if target is not None}
    every = [_Read(plan, read, reader, by_number) for read in plan.reads]
    yield from _by_file([read for read in every if read.is_in_order])
    reads = [read for read in every if not read.is_in_order]
    reads.sort(key=lambda read: -read.decoded_bytes)
    streams = [_batched(r.tasks()) for r in reads if r.decoded_bytes > BATCH_BYTES]
    yield from _in_turn(streams, plan.workers)
    small = reads[len(streams) :]
    yield from _batched(task for read in small for task in read.tasks())


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


def _batched(tasks: Iterator[tuple[int, Task]]) -> Iterator[tuple[Task, ...]]:
    """Consecutive tasks, given with their weights, until a batch is heavy or long enough."""
    batch: list[Task] = []
    weight = 0
    for nbytes, task in tasks:
        batch.append(task)
        weight += nbytes
        if weight >= BATCH_BYTES or len(batch) >= BATCH_TASKS:
            yield tuple(batch)
            batch, weight = [], 0
    if batch:
        yield tuple(batch)


def _by_file(reads: Sequence[_Read]) -> Iterator[tuple[Task, ...]]:
    """For each file that is written in order, its tasks in that order; files that share chunks go together."""
    units = [(number, unit) for number, read in enumerate(reads) for unit in read.left()]
    places = [reads[number].first_places(unit) for number, unit in units]
    for group in in_order_of_files(places):
        yield tuple(reads[number].task(unit) for number, unit in map(units.__getitem__, group))


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

    def left(self) -> Iterator[int]:
        """The units that its one target lacks."""
        (at,) = self._moves
        count = self._plan.move(at).units.count
        return (unit for unit in range(count) if not self._is_done(at, unit))

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

    def tasks(self) -> Iterator[tuple[int, Task]]:
        """A task for each unit that any target lacks, each with its weight: about how many bytes it decodes."""
        if not self._moves:
            return
        first = self._plan.move(self._moves[0])
        nbytes = self.decoded_bytes // max(1, first.price.tasks)
        if self._waits_for_answers(first):
            nbytes += REQUEST_WEIGHT
        for unit, index in enumerate(first.units.indices()):
            left = [at for at in self._moves if not self._is_done(at, unit)]
            if left:
                yield nbytes, self._task(left, unit, first.units.box(index))

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
    for index in itertools.product(*spec.storage.overlapping(move.placement.to_source(unit))):
        yield SourceChunk.at(index, spec, reader)


def _targets(move: Move, unit: Box, output: TargetOutput) -> Iterator[TargetChunk]:
    """In the order of the placement's axes, whatever the target's own are."""
    spec, placement = move.target.spec, move.placement
    ranges = spec.storage.overlapping(placement.to_target(unit))
    order = placement.axis_order
    by_source_axis = [ranges[order.index(d)] for d in range(len(order))]
    for turned in itertools.product(*by_source_axis):
        index = tuple(turned[d] for d in order)
        places = output.places(spec.name, index)
        yield TargetChunk(index, places, spec.storage.box(index), spec.stored_shape(index))
