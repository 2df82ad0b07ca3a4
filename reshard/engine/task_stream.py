"""Makes tasks from a plan, a batch at a time: chunks are located late, so that a large plan stays small.

Units of all tensors and targets that share a read are filled by one task.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from reshard.engine.books import TargetRun
from reshard.engine.part_units import ALL, PartUnits
from reshard.engine.task import Task
from reshard.formats.base import Reader
from reshard.planning.plans import MultiPlan
from reshard.storage.parts import Part

T = TypeVar("T")


class BatchLimits(Struct, frozen=True):
    """A batch ends when it decodes ``nbytes``, or has so many tasks."""

    nbytes: int
    tasks: int


BATCH_BYTES = 4 << 20
BATCH_TASKS = 64
"""Small tasks are sent together: sending one costs as much as moving 100 KiB."""

BATCHES_PER_S = 50
WORKER_BYTES_PER_S = 600 << 20
"""Bytes that a worker moves in a second, to size batches that one thread can submit (measured: zstd to uncompressed,
``benchmarks.hosts.task_times``)."""

BATCHES_PER_WORKER = 4
"""The least number of batches for each worker, so that none still has much work when the others are done."""

MAX_BATCH_TASKS = 4096
"""A batch is made and sent as a whole: 4,096 tasks take some 4 MB."""


def task_batches(
    plan: MultiPlan,
    readers: Sequence[Reader],
    targets: Sequence[TargetRun | None],
    part: Part = ALL,
    workers_elsewhere: int = 0,
) -> Iterator[tuple[Task, ...]]:
    """All tasks of ``plan`` that are not done, in batches; tasks that share a read are one.

    ``readers`` are the source checkpoints, in the order of their numbers. ``targets`` has None for a target that needs no
    task, the same in all parts; ``part`` leaves out the units of other parts of the conversion. A file that is written in order is one
    batch. For many ``workers_elsewhere`` batches are larger, so that one thread can submit them. Large reads come first, so that
    none is left alone at the end. Tasks of as many reads as there are workers alternate, since two tasks of one tensor would
    wait for each other at the files that they share.
    """
    limits = batch_limits(plan.decoded_bytes, workers_elsewhere)
    units = PartUnits(plan, readers, targets, part.count)
    for group in units.groups(part):
        tasks = tuple(read.task(unit) for read, unit in group if read.is_left(unit))
        if tasks:
            yield tasks
    reads = list(units.ranges(part))
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
    """The size of batches: one thread submits at most ``BATCHES_PER_S``, and each worker gets several.

    With ``workers`` 0 they are threads of one host, where batches cost next to nothing.

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


def units_of_part(
    plan: MultiPlan, readers: Sequence[Reader], targets: Sequence[TargetRun | None], part: Part
) -> Iterator[tuple[int, int, int]]:
    """The target, the tensor and the number of each unit of the part, done or not; arguments as for ``task_batches``."""
    return PartUnits(plan, readers, targets, part.count).units(part)
