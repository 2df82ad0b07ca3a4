"""Plans the cheapest strategy for each piece of each tensor that fits the memory (see ``strategies``).

Memory: a task's need is arithmetic over chunk shapes, known before anything is read. The planner first looks for a
strategy that fits into ``max_memory / workers``. If there is none, it allows all of ``max_memory`` for a task, and
fewer tasks run at once. If still none fits, the plan is refused.

Pieces that come from one tensor share a read if that costs less and fits as well (``shared_reads``). Those for the same box are first
planned alone, and then join one another. Those for different boxes share one read, a few, or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.answers.record import MadeLater
from reshard.errors import MemoryBudgetError
from reshard.geometry.grid import Box
from reshard.planning.asked_fills import AskedFill, AskedFills, AskedTensor
from reshard.planning.plans import (
    Fill,
    FillAt,
    Filled,
    MultiPlan,
    Plan,
    Read,
    Side,
    TensorPlans,
)
from reshard.planning.read_box import AnyWanted, geometry
from reshard.planning.strategies import (
    COPY_BYTES,
    SharedRead,
    WantedPiece,
    cheapest,
    joint_read,
    seconds,
    smallest_memory,
)
from reshard.planning.task_cost import PROCESS_BYTES, counted_bytes

__all__ = [
    "COPY_BYTES",
    "WantedPiece",
    "allowed_text",
    "make_multi_plan",
    "make_plan",
    "smallest_memory",
]


def make_plan(
    wanted_pieces: Sequence[AnyWanted],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> Plan:
    """The plan of one target; ``make_multi_plan`` makes the plan of several."""
    return make_multi_plan([wanted_pieces], max_memory, workers, metadata_bytes, processes).plans[0]


def make_multi_plan(
    wanted_pieces: Sequence[Sequence[AnyWanted]],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for the wanted pieces of each of several targets, within one budget.

    Wanted pieces of one target that name one tensor are its pieces. Arguments and errors as for ``plan_fills``; PlanError if the pieces
    of a tensor do not tile it.
    """
    asked = AskedFills.of(wanted_pieces)
    return plan_fills(asked, max_memory, workers, metadata_bytes, processes)


def plan_fills(
    asked: AskedFills,
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for fills within one budget. Workers are threads of ``processes`` processes, or of this one if that is 0.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for everything, if no
    strategy of a wanted piece fits.
    """
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    budget = Budget(max_memory - counted, workers)
    known = [_shared(group, asked, budget, counted) for group in asked.firsts]
    made: list[Any] = [None] * len(asked.places)
    reads: list[FillAt | Read] = []
    for group, kind in zip(asked.groups, asked.kinds, strict=True):
        if isinstance(group, int):
            made[group] = known[kind][0].fills[0]
            reads.append(asked.places[group])
            continue
        for shared in known[kind]:
            numbers = [group[number] for number in shared.numbers]
            for number, fill in zip(numbers, shared.fills, strict=True):
                made[number] = fill
            reads.append(_read_of(shared, numbers, asked))
    in_order = iter(made)
    plans = tuple(
        Plan(
            TensorPlans([_filled(tensor, in_order) for tensor in of_target]),
            budget.memory,
            workers,
            metadata_bytes,
            max_memory,
            processes,
        )
        for of_target in asked.tensors
    )
    return MultiPlan(plans, MadeLater(reads, partial(_read, plans)))


def _filled(tensor: AskedTensor, fills: Iterator[Fill]) -> Filled:
    """A tensor with its fills, the next ones."""
    if isinstance(tensor, list):
        return tensor, list(islice(fills, len(tensor)))
    return tensor, next(fills)


def _read_of(shared: SharedRead, numbers: Sequence[int], asked: AskedFills) -> FillAt | Read:
    """The read of the fills with these numbers; one that shares none stands for its own."""
    places = [asked.places[number] for number in numbers]
    if len(places) == 1:
        return places[0]
    boxes = [wanted.piece.source_box for (wanted,) in asked.of_group(numbers)]
    return Read(tuple(places), Box.around(boxes), shared.units)


def _read(plans: Sequence[Plan], read: FillAt | Read) -> Read:
    """A read; a fill that shares none stands for its own."""
    if isinstance(read, Read):
        return read
    fill = plans[read.target].tensors[read.tensor].fills[read.fill]
    return Read.of([read], [fill], fill.units)


def _shared(
    group: Sequence[AskedFill], asked: AskedFills, budget: Budget, metadata_bytes: int
) -> list[SharedRead]:
    """As few reads for a group as memory and processor time allow."""
    full = [[wanted.full for wanted in one] for one in group]
    if len(full[0]) > 1:
        return [_joint(full[0], budget, metadata_bytes)]
    found = shared_reads([one for (one,) in full], budget)
    if found is None:
        # The refusal names the largest tensor of one target, or of several targets a tensor that shares the read.
        is_one = len(asked.tensors) == 1
        refusable = asked.wanted_pieces if is_one else (one for (one,) in group)
        raise _refusal(refusable, budget.memory, metadata_bytes)
    return found


def _joint(wanted_pieces: Sequence[WantedPiece], budget: Budget, metadata_bytes: int) -> SharedRead:
    """The read of pieces that are assembled together."""
    for memory in (budget.task_share(wanted_pieces), budget.memory):
        read = joint_read(wanted_pieces, memory)
        if read.task_bytes <= memory:
            return read
    least = joint_read(wanted_pieces, 0).task_bytes
    raise _refused(wanted_pieces[0], least, budget.memory, metadata_bytes)


def _refusal(
    wanted_pieces: Iterable[AnyWanted], max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    unlike = {geometry(r): r.full for r in wanted_pieces}.values()
    need, _, wanted = max(
        ((smallest_memory(r), r.piece.target, r) for r in unlike), key=lambda n: n[:2]
    )
    return _refused(wanted, need, max_memory, metadata_bytes)


def _refused(
    wanted: WantedPiece, need: int, max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    """The refusal of a wanted piece whose task takes ``need`` bytes."""
    mib, smallest = -(-need // (1 << 20)), -(-(need + metadata_bytes) // (1 << 20))
    remedy = f"allow max_memory of {smallest}MiB"
    if not wanted.target.raw:
        remedy += ", write smaller chunks (chunk_bytes), or write without compression"
    return MemoryBudgetError(
        f"{wanted.piece.target!r} of shape {list(wanted.target.spec.shape)} needs at least {mib} MiB of buffers "
        f"({wanted.source.codec} chunks of {_shape(wanted.source)} to {wanted.target.codec} chunks of "
        f"{_shape(wanted.target)}), but {allowed_text(max_memory, metadata_bytes)}; {remedy}",
        smallest_bytes=smallest << 20,
    )


def allowed_text(max_memory: int, metadata_bytes: int) -> str:
    """The part of a refusal that gives the memory left for buffers beside metadata."""
    text = f"{max(0, max_memory) / (1 << 20):.4g} MiB are"
    if not metadata_bytes:
        return f"{text} allowed"
    allowed, taken = (n / (1 << 20) for n in (max_memory + metadata_bytes, metadata_bytes))
    return f"{text} left of {allowed:.4g} MiB beside metadata of {taken:.4g} MiB"


def _shape(side: Side) -> str:
    return "×".join(map(str, side.spec.chunk_shape or side.spec.storage.largest)) or "a scalar"


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
    if len(numbers) == 1:
        only = _alone(wanted_pieces[numbers[0]], budget)
        return None if only is None else [replace(only, numbers=tuple(numbers))]
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        alike[wanted_pieces[number].kind].append(number)
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
        found = [_group_read(part, wanted_pieces, budget) for part in parts]
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


def _group_read(
    numbers: Sequence[int], wanted_pieces: Sequence[WantedPiece], budget: Budget
) -> SharedRead | None:
    """One read of these pieces, with the cost of reading in its first fill only; None if it does not fit."""
    read = _within([wanted_pieces[number] for number in numbers], budget)
    if read is None:
        return None
    first, *others = read.fills
    unpaid = {id(f): f for f in others}
    for key, fill in unpaid.items():
        unpaid[key] = replace(fill, price=replace(fill.price, decoded_bytes=0, source_bytes=0))
    fills = [unpaid[id(fill)] for fill in others]
    return replace(read, fills=(first, *fills), numbers=tuple(numbers))


def _within(wanted_pieces: Sequence[WantedPiece], budget: Budget) -> SharedRead | None:
    read = cheapest(wanted_pieces, budget.task_share(wanted_pieces), budget.open_chunks)
    return read or cheapest(wanted_pieces, budget.memory, budget.open_chunks)


def _alone(wanted: WantedPiece, budget: Budget) -> SharedRead | None:
    """The read of a wanted piece that shares none; its fill may have the names and places of a wanted piece like it."""
    if wanted.kind not in budget.alone:
        budget.alone[wanted.kind] = _within([wanted], budget)
    return budget.alone[wanted.kind]
