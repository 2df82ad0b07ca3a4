"""From a plan to tasks: chunks are located as tasks are made, so that a large plan stays small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from reshard.engine.task import SourceChunk, TargetChunk, Task
from reshard.formats.base import Encoding, Reader, StoredTensor, Writer
from reshard.layout.box import Box
from reshard.plan.move import Move, Plan
from reshard.plan.planner import open_files_per_task

BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""Small tasks travel together: handing one over costs as much as moving 100 KiB."""


def batches(
    plan: Plan, reader: Reader, writer: Writer, encodings: dict[str, Encoding]
) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan``, small ones in batches; ``encodings`` by target name.

    The largest moves come first, so that none of them is left alone at the end.
    """
    files = open_files_per_task(plan.workers) // 2
    order = sorted(range(len(plan.moves)), key=lambda i: -plan.moves[i].price.decoded_bytes)
    batch: list[Task] = []
    weight = 0
    for number in order:
        move = plan.moves[number]
        stored = reader.tensors[move.placement.source]
        unit_bytes = move.price.decoded_bytes // max(1, move.price.tasks)
        for unit in _units(move):
            batch.append(_task(number, move, unit, stored, reader, writer, encodings, files))
            weight += unit_bytes
            if weight >= BATCH_BYTES or len(batch) >= BATCH_TASKS:
                yield tuple(batch)
                batch, weight = [], 0
    if batch:
        yield tuple(batch)


def _units(move: Move) -> Iterator[Box]:
    return map(move.units.box, move.units.indices())


def _task(
    number: int,
    move: Move,
    unit: Box,
    stored: StoredTensor,
    reader: Reader,
    writer: Writer,
    encodings: dict[str, Encoding],
    open_files: int,
) -> Task:
    placement = move.placement
    return Task(
        move=number,
        strategy=move.strategy,
        placement=placement,
        unit=unit,
        sources=tuple(_sources(move, unit, reader)),
        source_grid=placement.source_grid(move.source.spec.storage).clip(unit),
        source_encoding=stored.encoding,
        fill=stored.fill,
        targets=tuple(_targets(move, unit, writer)),
        target_grid=placement.target_grid(move.target.spec.storage).clip(unit),
        target_encoding=encodings[placement.target],
        target_shape=move.target.spec.shape,
        band_bytes=move.band_bytes,
        memory_bytes=move.price.task_bytes,
        open_files=open_files,
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
