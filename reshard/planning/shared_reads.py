"""Reads of one tensor: wanted pieces for it share a read if that costs less and fits as well.

Wanted pieces for the same box are first planned alone, and then join one another. Wanted pieces for different boxes share one read, a
few, or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.planning.strategies import SharedRead, WantedPiece, cheapest, seconds

OPEN_FILES = 768
"""Files open at once in a run, sources and targets together; 1,024 is a common limit."""


DISTANT_TASKS = 4
DISTANT_TASK_BYTES = 64 << 20
"""The most bytes that a task may take to read a distant source, if ``DISTANT_TASKS`` such tasks fit."""


def open_files_per_task(workers: int) -> int:
    """Files that one of ``workers`` tasks may have open, half of them for decoding in lock step."""
    return max(16, OPEN_FILES // workers)


class Budget(Struct, frozen=True):
    """The memory that a plan may use.

    Attributes:
        memory: bytes for buffers alone.
        alone: the reads of wanted pieces that share none, by their geometry.
    """

    memory: int
    workers: int
    alone: dict[Hashable, SharedRead | None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """Bytes for one task when all workers are busy."""
        return self.memory // self.workers

    def task_share(self, wanted_pieces: Sequence[WantedPiece]) -> int:
        """Bytes for one task that fills these wanted pieces.

        Reading a distant source twice costs more than fewer tasks at once, so a task may take the share of several workers.
        """
        if not wanted_pieces[0].source.is_distant:
            return self.share
        return max(self.share, min(self.memory // DISTANT_TASKS, DISTANT_TASK_BYTES))

    @property
    def open_chunks(self) -> int:
        """Source chunks that one task may decode side by side."""
        return open_files_per_task(self.workers) // 2


def shared_reads(wanted_pieces: Sequence[WantedPiece], budget: Budget) -> list[SharedRead] | None:
    """As few reads of one tensor as memory and processor time allow; None if a wanted piece does not fit."""
    by_box: dict[Hashable, list[int]] = defaultdict(list)
    for number, wanted in enumerate(wanted_pieces):
        by_box[wanted.piece.source_box].append(number)
    apart = []
    for numbers in by_box.values():
        found = _of_one_box(numbers, wanted_pieces, budget)
        if found is None:
            return None
        apart += found
    if len(by_box) == 1 or any(r.target.in_order for r in wanted_pieces):
        return apart  # targets that are written in order pass through their own files
    return min((apart, *_grouped(wanted_pieces, budget)), key=_seconds_of)


def _of_one_box(
    numbers: Sequence[int], wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> list[SharedRead] | None:
    """Reads of wanted pieces for the same box: each joins the read that gains most by it. None if one does not fit."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        alike[wanted_pieces[number].geometry_alone if len(numbers) > 1 else None].append(number)
    reads: list[SharedRead] = []
    for same in alike.values():
        alone = _alone(wanted_pieces[same[0]], budget)
        if alone is None:
            return None
        found = _of_alike(same, alone, wanted_pieces, budget)
        reads += [read for read in found if not _joins(read, reads, wanted_pieces, budget)]
    return reads


def _of_alike(
    numbers: Sequence[int], alone: SharedRead, wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> list[SharedRead]:
    """Reads of wanted pieces that differ in names and places only: one for all, two, three, five, …, or one for each.

    Parts of one size cost the same, so that only one of each size is priced.
    """
    best = [replace(alone, numbers=(number,)) for number in numbers]
    of_size: dict[int, SharedRead | None] = {1: alone}
    for parts in _ways(numbers, len(numbers) - 1):
        for part in parts:
            if len(part) not in of_size:
                of_size[len(part)] = _joined(part, alone.task_bytes, wanted_pieces, budget)
        found = [(tuple(part), of_size[len(part)]) for part in parts]
        reads = [replace(read, numbers=part) for part, read in found if read is not None]
        if len(reads) == len(parts):
            best = min(best, reads, key=_seconds_of)
    return best


def _joins(
    alone: SharedRead, reads: list[SharedRead], wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> bool:
    """Joins ``alone`` to that of the latest reads that gains most by it; False if none gains."""
    best, place, gained = alone, -1, 0.0
    for number in range(max(0, len(reads) - MOST_GROUPS), len(reads)):
        read = reads[number]
        numbers = (*read.numbers, *alone.numbers)
        most = max(read.task_bytes, alone.task_bytes)
        joined = _joined(numbers, most, wanted_pieces, budget)
        if joined is not None:
            gain = seconds(read) + seconds(alone) - seconds(joined)
            if gain > gained:
                best, place, gained = replace(joined, numbers=numbers), number, gain
    if gained:
        reads[place] = best
    return gained > 0


def _joined(
    numbers: Sequence[int], most: int, wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> SharedRead | None:
    """One read of several wanted pieces. None of them takes more than ``most`` bytes alone."""
    if any(wanted_pieces[n].target.in_order for n in numbers):
        return None  # each passes through its own files in order
    # If one wanted piece already has all the memory for one task, the other may share it.
    share = budget.task_share(wanted_pieces)
    memory = share if most <= share else budget.memory
    return cheapest([wanted_pieces[n] for n in numbers], memory, budget.open_chunks)


def _seconds_of(reads: Sequence[SharedRead]) -> float:
    return sum(seconds(read) for read in reads)


MOST_GROUPS = 64
"""The largest number of groups of fills that is priced, each with its own read."""

MOST_GROUPED = 512
"""More fills than these form a single group: pricing takes some 20 µs a fill, for each way of grouping."""


def _grouped(wanted_pieces: Sequence[WantedPiece], budget: Budget) -> Iterator[list[SharedRead]]:
    """All fills in one read, in two, three, five, …

    Some of many stacked layers fit into the memory whole; all together would be written in pieces.
    """
    order = sorted(range(len(wanted_pieces)), key=lambda n: wanted_pieces[n].piece.source_box.start)
    most = 1 if len(wanted_pieces) > MOST_GROUPED else min(MOST_GROUPS, len(wanted_pieces) - 1)
    for parts in _ways(order, most):
        found = [_read_of(part, wanted_pieces, budget) for part in parts]
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


def _read_of(
    numbers: Sequence[int], wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> SharedRead | None:
    """One read of these pieces, with the cost of reading in its first fill only; None if it does not fit."""
    read = _within([wanted_pieces[number] for number in numbers], budget)
    if read is None:
        return None
    first, *others = read.fills
    fills = [replace(f, price=replace(f.price, decoded_bytes=0, source_bytes=0)) for f in others]
    return replace(read, fills=(first, *fills), numbers=tuple(numbers))


def _within(wanted_pieces: Sequence[WantedPiece], budget: Budget) -> SharedRead | None:
    read = cheapest(wanted_pieces, budget.task_share(wanted_pieces), budget.open_chunks)
    return read or cheapest(wanted_pieces, budget.memory, budget.open_chunks)


def _alone(wanted: WantedPiece, budget: Budget) -> SharedRead | None:
    """The read of a wanted piece that shares none; its fill may have the names and places of a wanted piece like it."""
    key = wanted.geometry_alone
    if key not in budget.alone:
        budget.alone[key] = _within([wanted], budget)
    return budget.alone[key]
