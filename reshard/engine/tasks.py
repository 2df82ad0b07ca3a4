"""From a plan to tasks: chunks are located as tasks are made, so that a large plan stays small."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reshard.engine.task import SourceChunk, TargetChunk, Task
from reshard.formats.base import Encoding, Reader, StoredTensor, Writer
from reshard.layout.box import Box
from reshard.planning.move import Move, Plan
from reshard.planning.planner import open_files_per_task

T = TypeVar("T")

BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""Small tasks travel together: handing one over costs as much as moving 100 KiB."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where tasks read and write; ``encodings`` is by target name."""

    reader: Reader
    writer: Writer
    encodings: Mapping[str, Encoding]


class DoneUnits:
    """Which units of which moves are done already: a byte for each unit of the plan."""

    def __init__(self, plan: Plan) -> None:
        counts = [move.units.count for move in plan.moves]
        self._first = list(itertools.accumulate(counts, initial=0))
        self._done = bytearray(self._first[-1])

    def add(self, move: int, unit: int) -> None:
        self._done[self._first[move] + unit] = 1

    def has(self, move: int, unit: int) -> bool:
        return bool(self._done[self._first[move] + unit])


def batches(plan: Plan, ends: Ends, done: DoneUnits | None = None) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan`` but those that are ``done``; small ones in batches.

    Large moves come first, so that none is left alone at the end, and as many of them in turn as
    there are workers: two tasks of one move would wait for each other at the files they share.
    """
    files = open_files_per_task(plan.workers) // 2
    order = sorted(range(len(plan.moves)), key=lambda i: -plan.moves[i].price.decoded_bytes)
    large = [i for i in order if plan.moves[i].price.decoded_bytes > BATCH_BYTES]
    streams = [_batched(_tasks(plan, [i], ends, files, done)) for i in large]
    yield from _in_turn(streams, plan.workers)
    yield from _batched(_tasks(plan, order[len(large) :], ends, files, done))


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
    """Consecutive tasks, given with their bytes, until a batch is heavy or long enough."""
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


def _tasks(
    plan: Plan,
    numbers: Sequence[int],
    ends: Ends,
    open_files: int,
    done: DoneUnits | None,
) -> Iterator[tuple[int, Task]]:
    """The tasks of some moves, each with about how many bytes it decodes."""
    for number in numbers:
        move = plan.moves[number]
        stored = ends.reader.tensors[move.placement.source]
        nbytes = move.price.decoded_bytes // max(1, move.price.tasks)
        for unit, index in enumerate(move.units.indices()):
            if done is None or not done.has(number, unit):
                box = move.units.box(index)
                yield nbytes, _task(number, unit, move, box, stored, ends, open_files)


def _task(
    number: int,
    unit_number: int,
    move: Move,
    unit: Box,
    stored: StoredTensor,
    ends: Ends,
    open_files: int,
) -> Task:
    placement = move.placement
    return Task(
        move=number,
        strategy=move.strategy,
        placement=placement,
        unit=unit,
        sources=tuple(_sources(move, unit, ends.reader)),
        source_encoding=stored.encoding,
        fill=stored.fill,
        targets=tuple(_targets(move, unit, ends.writer)),
        target_grid=placement.target_grid(move.target.spec.storage).clip(unit),
        target_encoding=ends.encodings[placement.target],
        target_shape=move.target.spec.shape,
        band_bytes=move.band_bytes,
        memory_bytes=move.price.task_bytes,
        open_files=open_files,
        unit_number=unit_number,
    )


def _sources(move: Move, unit: Box, reader: Reader) -> Iterator[SourceChunk]:
    spec = move.source.spec
    for index in itertools.product(*spec.storage.overlapping(move.placement.to_source(unit))):
        extent = reader.locate(spec.name, index)
        yield SourceChunk(index, extent, spec.storage.box(index), spec.stored_shape(index))


def _targets(move: Move, unit: Box, writer: Writer) -> Iterator[TargetChunk]:
    """In the order of the placement's axes, whatever the target's own are."""
    spec, placement = move.target.spec, move.placement
    ranges = spec.storage.overlapping(placement.to_target(unit))
    order = placement.axis_order
    by_source_axis = [ranges[order.index(d)] for d in range(len(order))]
    for turned in itertools.product(*by_source_axis):
        index = tuple(turned[d] for d in order)
        file = writer.chunk_file(spec.name, index)
        yield TargetChunk(index, file, spec.storage.box(index), spec.stored_shape(index))
