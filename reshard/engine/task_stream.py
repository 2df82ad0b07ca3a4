"""Makes tasks from a plan, a batch at a time: chunks are located late, so that a large plan stays small.

Units of all tensors and targets that share a read are filled by one task.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from reshard.engine.books import TargetRun
from reshard.engine.part_units import ALL, PartUnits
from reshard.engine.task import Task
from reshard.formats.base import Reader
from reshard.planning.plans import MultiPlan
from reshard.storage.parts import Part

T = TypeVar("T")


BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""A batch ends when it decodes so many bytes, or has so many tasks: sending one costs as much as moving 100 KiB."""


def task_batches(
    plan: MultiPlan,
    readers: Sequence[Reader],
    targets: Sequence[TargetRun | None],
    part: Part = ALL,
) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan`` that are not done, in batches; tasks that share a read are one.

    ``readers`` are the source checkpoints, in the order of their numbers. ``targets`` has None for a target that needs no
    task, the same in all parts; ``part`` leaves out the units of other parts of the conversion. A file that is written in order is one
    batch. Large reads come first, so that none is left alone at the end. Tasks of as many reads as there are workers alternate,
    since two tasks of one tensor would wait for each other at the files that they share.
    """
    units = PartUnits(plan, readers, targets, part.count)
    for group in units.groups(part):
        tasks = tuple(read.task(unit) for read, unit in group if read.is_left(unit))
        if tasks:
            yield tasks
    reads = list(units.ranges(part))
    reads.sort(key=lambda read: -read[0].decoded_bytes)
    large = [(read, of) for read, of in reads if read.decoded_bytes > BATCH_BYTES]
    streams = [_batched(read.tasks(of)) for read, of in large]
    yield from _in_turn(streams, plan.workers)
    small = reads[len(streams) :]
    yield from _batched((task for read, of in small for task in read.tasks(of)))


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


def units_of_part(
    plan: MultiPlan, readers: Sequence[Reader], targets: Sequence[TargetRun | None], part: Part
) -> Iterator[tuple[int, int, int]]:
    """The target, the tensor and the number of each unit of the part, done or not; arguments as for ``task_batches``."""
    return PartUnits(plan, readers, targets, part.count).units(part)
