"""Reads of one tensor: demands for it share a read if that costs less and fits as well.

Demands for the same box are first planned alone, and then join one another. Demands for different boxes share one read, a
few, or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.planning.strategies import Choice, Demand, cheapest, seconds

OPEN_FILES = 768
"""Files open at once in a run, sources and targets together; 1,024 is a common limit."""


DISTANT_TASKS = 4
DISTANT_TASK_BYTES = 64 << 20
"""The most bytes that a task may take to read a distant source, if ``DISTANT_TASKS`` such tasks fit."""


def open_files_per_task(workers: int) -> int:
    """Files that one of ``workers`` tasks may have open, half of them for decoding in lock step."""
    return max(16, OPEN_FILES // workers)


class Room(Struct, frozen=True):
    """The memory that a plan may use.

    Attributes:
        memory: bytes for buffers alone.
        alone: the choices for demands that share no read, by their geometry.
    """

    memory: int
    workers: int
    alone: dict[Hashable, Choice | None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """Bytes for one task when all workers are busy."""
        return self.memory // self.workers

    def task_share(self, demands: Sequence[Demand]) -> int:
        """Bytes for one task that fills these demands.

        Reading a distant source twice costs more than fewer tasks at once, so a task may take the share of several workers.
        """
        if not demands[0].source.is_distant:
            return self.share
        return max(self.share, min(self.memory // DISTANT_TASKS, DISTANT_TASK_BYTES))

    @property
    def open_chunks(self) -> int:
        """Source chunks that one task may decode side by side."""
        return open_files_per_task(self.workers) // 2


class SharedRead(Struct, frozen=True):
    """Demands of a group that share a read, and the choice for them."""

    numbers: tuple[int, ...]
    choice: Choice


def shared_reads(demands: Sequence[Demand], room: Room) -> list[SharedRead] | None:
    """As few reads of one tensor as memory and processor time allow; None if a demand does not fit."""
    by_box: dict[Hashable, list[int]] = defaultdict(list)
    for number, demand in enumerate(demands):
        by_box[demand.piece.source_box].append(number)
    apart = []
    for numbers in by_box.values():
        found = _of_one_box(numbers, demands, room)
        if found is None:
            return None
        apart += found
    if len(by_box) == 1 or any(r.target.in_order for r in demands):
        return apart  # targets that are written in order pass through their own files
    return min((apart, *_grouped(demands, room)), key=_seconds_of)


def _of_one_box(
    numbers: Sequence[int], demands: Sequence[Demand], room: Room
) -> list[SharedRead] | None:
    """Reads of demands for the same box: each joins the read that gains most by it. None if one does not fit."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        alike[demands[number].geometry_alone if len(numbers) > 1 else None].append(number)
    reads: list[SharedRead] = []
    for same in alike.values():
        alone = _alone(demands[same[0]], room)
        if alone is None:
            return None
        found = _of_alike(same, alone, demands, room)
        reads += [read for read in found if not _joins(read, reads, demands, room)]
    return reads


def _of_alike(
    numbers: Sequence[int], alone: Choice, demands: Sequence[Demand], room: Room
) -> list[SharedRead]:
    """Reads of demands that differ in names and places only: one for all, two, three, five, …, or one for each.

    Parts of one size cost the same, so that only one of each size is priced.
    """
    best = [SharedRead((number,), alone) for number in numbers]
    choices: dict[int, Choice | None] = {1: alone}
    for parts in _ways(numbers, len(numbers) - 1):
        for part in parts:
            if len(part) not in choices:
                choices[len(part)] = _joined(part, alone.task_bytes, demands, room)
        found = [(tuple(part), choices[len(part)]) for part in parts]
        reads = [SharedRead(part, choice) for part, choice in found if choice is not None]
        if len(reads) == len(parts):
            best = min(best, reads, key=_seconds_of)
    return best


def _joins(
    alone: SharedRead, reads: list[SharedRead], demands: Sequence[Demand], room: Room
) -> bool:
    """Joins ``alone`` to that of the latest reads that gains most by it; False if none gains."""
    best, place, gained = alone, -1, 0.0
    for number in range(max(0, len(reads) - MOST_GROUPS), len(reads)):
        read = reads[number]
        numbers = (*read.numbers, *alone.numbers)
        most = max(read.choice.task_bytes, alone.choice.task_bytes)
        joined = _joined(numbers, most, demands, room)
        if joined is not None:
            gain = seconds(read.choice) + seconds(alone.choice) - seconds(joined)
            if gain > gained:
                best, place, gained = SharedRead(numbers, joined), number, gain
    if gained:
        reads[place] = best
    return gained > 0


def _joined(
    numbers: Sequence[int], most: int, demands: Sequence[Demand], room: Room
) -> Choice | None:
    """The choice for several demands in one read. None of them takes more than ``most`` bytes alone."""
    if any(demands[n].target.in_order for n in numbers):
        return None  # each passes through its own files in order
    # If one demand already has all the memory for one task, the other may share it.
    share = room.task_share(demands)
    memory = share if most <= share else room.memory
    return cheapest([demands[n] for n in numbers], memory, room.open_chunks)


def _seconds_of(reads: Sequence[SharedRead]) -> float:
    return sum(seconds(read.choice) for read in reads)


MOST_GROUPS = 64
"""The largest number of groups of fills that is priced, each with its own read."""

MOST_GROUPED = 512
"""More fills than these form a single group: pricing takes some 20 µs a fill, for each way of grouping."""


def _grouped(demands: Sequence[Demand], room: Room) -> Iterator[list[SharedRead]]:
    """All fills in one read, in two, three, five, …

    Some of many stacked layers fit into the memory whole; all together would be written in pieces.
    """
    order = sorted(range(len(demands)), key=lambda n: demands[n].piece.source_box.start)
    most = 1 if len(demands) > MOST_GROUPED else min(MOST_GROUPS, len(demands) - 1)
    for parts in _ways(order, most):
        found = [_read_of(part, demands, room) for part in parts]
        reads = [read for read in found if read is not None]
        if len(reads) == len(found):
            yield reads


def _ways(numbers: Sequence[int], most: int) -> Iterator[list[Sequence[int]]]:
    """All together, then in two parts of about one size, in three, five, …, up to ``most`` parts."""
    count = 1
    while count <= most:
        ends = [number * len(numbers) // count for number in range(count + 1)]
        yield [numbers[a:b] for a, b in pairwise(ends)]
        count = -(-count * 3 // 2)


def _read_of(numbers: Sequence[int], demands: Sequence[Demand], room: Room) -> SharedRead | None:
    choice = _within([demands[number] for number in numbers], room)
    return None if choice is None else SharedRead(tuple(numbers), _paid_once(choice))


def _paid_once(choice: Choice) -> Choice:
    """The choice with the cost of reading in its first fill only."""
    first, *others = choice.fills
    fills = [replace(f, price=replace(f.price, decoded_bytes=0, source_bytes=0)) for f in others]
    return replace(choice, fills=(first, *fills))


def _within(demands: Sequence[Demand], room: Room) -> Choice | None:
    choice = cheapest(demands, room.task_share(demands), room.open_chunks)
    return choice or cheapest(demands, room.memory, room.open_chunks)


def _alone(demand: Demand, room: Room) -> Choice | None:
    """The choice for a demand that shares no read; its fill may have the names and places of a demand like it."""
    key = demand.geometry_alone
    if key not in room.alone:
        room.alone[key] = _within([demand], room)
    return room.alone[key]
