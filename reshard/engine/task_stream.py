"""Makes tasks from a plan, a batch at a time: chunks are located late, so that a large plan stays small.

Units of all tensors and targets that share a read are filled by one task.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from reshard.engine.books import TargetRun
from reshard.engine.read_tasks import ALL, ReadTasks, part_ranges
from reshard.engine.task import Task
from reshard.formats.base import Reader
from reshard.formats.file_map import Place
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
    task; ``part`` leaves out the units of other parts of the conversion. Large reads come first, so that none is left alone at
    the end. Tasks of as many reads as there are workers alternate, since two tasks of one tensor would wait for each other at the
    files that they share.
    """
    by_number = {n: target for n, target in enumerate(targets) if target is not None}
    every = [ReadTasks(plan, read, readers, by_number) for read in plan.reads]
    yield from _by_file([read for read in every if read.is_in_order], part)
    others = [read for read in every if not read.is_in_order]
    reads = list(zip(others, part_ranges(part, [r.decoded_bytes for r in others]), strict=True))
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


def _by_file(reads: Sequence[ReadTasks], part: Part) -> Iterator[tuple[Task, ...]]:
    """The tasks of each file that is written in order, in that order; files that share chunks go together."""
    for group in _groups(reads, part):
        tasks = tuple(read.task(unit) for read, unit in group if read.is_left(unit))
        if tasks:
            yield tasks


def _groups(reads: Sequence[ReadTasks], part: Part) -> Iterator[list[tuple[ReadTasks, int]]]:
    """The units of each file that belong to the part, in the file's order."""
    units = [(read, unit) for read in reads for unit in read.units()]
    groups = list(in_order_of_files([read.first_places(unit) for read, unit in units]))
    weights = [sum(units[at][0].unit_bytes for at in group) for group in groups]
    for group, of in zip(groups, part_ranges(part, weights), strict=True):
        if of.units(1):
            yield [units[at] for at in group]


def units_of_part(
    plan: MultiPlan, readers: Sequence[Reader], targets: Sequence[TargetRun | None], part: Part
) -> Iterator[tuple[int, int, int]]:
    """The target, the tensor and the number of each unit of the part, done or not; arguments as of ``task_batches``."""
    by_number = {n: target for n, target in enumerate(targets) if target is not None}
    every = [ReadTasks(plan, read, readers, by_number) for read in plan.reads]
    for group in _groups([read for read in every if read.is_in_order], part):
        for read, unit in group:
            yield from read.filled(unit)
    others = [read for read in every if not read.is_in_order]
    ranges = part_ranges(part, [read.decoded_bytes for read in others])
    for read, of in zip(others, ranges, strict=True):
        for unit in of.units(read.count):
            yield from read.filled(unit)


def in_order_of_files(places: Sequence[tuple[Place, ...]]) -> Iterator[list[int]]:
    """The numbers of all chunks, grouped by files; each group is in an order in which every file grows.

    Args:
        places: of each chunk, in one or several files. Files that share a chunk are in one group.

    >>> list(in_order_of_files([(Place("a", 8),), (Place("b", 0),), (Place("a", 0),)]))
    [[2, 0], [1]]
    """
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, found in enumerate(places):
        for place in found:
            by_file[place.file].append((place.start, number))
    queues = {file: deque(number for _, number in sorted(of)) for file, of in by_file.items()}
    files = [[place.file for place in found] for found in places]
    for group in _connected(files, list(queues)):
        yield list(_merged({file: queues[file] for file in group}, files))


def _connected(files: Sequence[Sequence[str]], every: Sequence[str]) -> list[list[str]]:
    """The files that chunks connect, directly or through others."""
    above = {file: file for file in every}

    def top(file: str) -> str:
        while above[file] != file:
            above[file] = above[above[file]]
            file = above[file]
        return file

    for first, *others in files:
        for other in others:
            above[top(other)] = top(first)
    groups: dict[str, list[str]] = defaultdict(list)
    for file in every:
        groups[top(file)].append(file)
    return list(groups.values())


def _merged(queues: dict[str, deque[int]], files: Sequence[Sequence[str]]) -> Iterator[int]:
    """Each chunk as soon as it is the next in all of its files. All files of one target have their chunks in the same order."""
    ready = deque(queue[0] for queue in queues.values() if queue)
    waiting: dict[int, int] = defaultdict(int)
    while ready:
        number = ready.popleft()
        waiting[number] += 1
        if waiting[number] < len(files[number]):
            continue
        yield number
        for file in files[number]:
            queue = queues[file]
            queue.popleft()
            if queue:
                ready.append(queue[0])
