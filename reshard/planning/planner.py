"""Plans the cheapest strategy for each piece of each tensor that fits the memory (see ``strategies``).

Memory: a task's need is arithmetic over chunk shapes, known before anything is read. The planner first looks for a
strategy that fits into ``max_memory / workers``. If there is none, it allows all of ``max_memory`` for a task, and
fewer tasks run at once. If still none fits, the plan is refused.

Pieces that come from one tensor share a read where that costs less and fits as well. Those that want the same box, of
several targets, are first planned alone, and then join one another; those that want different boxes share one read or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.errors import MemoryBudgetError
from reshard.planning.joint import joint_choice
from reshard.planning.memory import PROCESS_BYTES, counted_bytes
from reshard.planning.multi_plan import FillAt, MultiPlan, Read
from reshard.planning.piece import check_tiled, spans_chunks
from reshard.planning.strategies import (
    COPY_BYTES,
    Choice,
    Request,
    cheapest,
    seconds,
    smallest_memory,
)
from reshard.planning.tensor_plan import Fill, Plan, Side, TensorPlan

__all__ = [
    "COPY_BYTES",
    "Request",
    "allowed_text",
    "make_multi_plan",
    "make_plan",
    "open_files_per_task",
    "smallest_memory",
]

OPEN_FILES = 768
"""Files open at once in a run, sources and targets together; 1,024 is a common limit."""


DISTANT_TASKS = 4
DISTANT_TASK_BYTES = 64 << 20
"""A task that reads a distant source may take so many bytes, if so many tasks then fit."""


def open_files_per_task(workers: int) -> int:
    """Files that one of ``workers`` tasks may have open, half of them for decoding in lock step."""
    return max(16, OPEN_FILES // workers)


class _Room(Struct, frozen=True):
    """The memory that a plan may use.

    Attributes:
        memory: bytes for buffers alone.
        alone: what was chosen in it for requests that share no read, by their geometry.
    """

    memory: int
    workers: int
    alone: dict[Hashable, Choice | None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """Bytes for one task when all workers are busy."""
        return self.memory // self.workers

    def task_share(self, requests: Sequence[Request]) -> int:
        """Bytes for one task that fills these requests.

        Reading a distant source twice costs more than fewer tasks at once, so a task may take the share of several workers.
        """
        if not requests[0].source.is_distant:
            return self.share
        return max(self.share, min(self.memory // DISTANT_TASKS, DISTANT_TASK_BYTES))

    @property
    def open_chunks(self) -> int:
        """Source chunks that one task may decode side by side."""
        return open_files_per_task(self.workers) // 2


def make_plan(
    requests: Sequence[Request],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> Plan:
    """The plan of one target, as ``make_multi_plan`` makes it of several."""
    return make_multi_plan([requests], max_memory, workers, metadata_bytes, processes).plans[0]


def make_multi_plan(
    requests: Sequence[Sequence[Request]],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for the requests of each of several targets, within one budget.

    Requests of one target that name one tensor are its pieces. Workers are threads of ``processes`` processes, or of one if
    those are 0.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for everything, if no
    strategy of a request fits. Raises PlanError if the pieces of a tensor do not tile it.
    """
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    room = _Room(max_memory - counted, workers)
    tensors = [_tensors(of_target) for of_target in requests]
    made: dict[FillAt, Fill] = {}
    reads: list[Read] = []
    known: dict[Hashable, list[_Shared]] = {}
    for sharing in _sharing(tensors):
        asked = [one for _, some in sharing for one in some]
        key = _geometry(asked)
        found = known.get(key)
        if found is None:
            # Of one target the tensor is named that needs the most; of several, one that shares the read.
            refusable = requests[0] if len(requests) == 1 else asked
            known[key] = found = _shared([some for _, some in sharing], room, refusable, counted)
        for shared in found:
            places = [sharing[number][0] for number in shared.numbers]
            numbered = zip(shared.numbers, shared.choice.fills, strict=True)
            fills = [_as_asked(sharing[number][1], fill) for number, fill in numbered]
            reads.append(Read.of(places, fills, shared.choice.units))
            made.update(zip(places, fills, strict=True))
    plans = tuple(
        Plan(
            tuple(_planned(target, number, fills, made) for number, fills in enumerate(of_target)),
            room.memory,
            workers,
            metadata_bytes,
            max_memory,
            processes,
        )
        for target, of_target in enumerate(tensors)
    )
    return MultiPlan(plans, tuple(reads))


def _geometry(requests: Sequence[Request]) -> Hashable:
    """Requests with the same are planned alike."""
    if len(requests) == 1:
        return requests[0].geometry_alone
    return tuple([request.geometry for request in requests])


_Asked = Sequence[Request]
"""What one fill is asked to do: a request, or several whose pieces are assembled together."""


def _tensors(requests: Sequence[Request]) -> list[list[_Asked]]:
    """The fills of each tensor of a target, in the order of the requests; PlanError where pieces do not tile a tensor."""
    by_name: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_name[request.piece.target].append(request)
    return [list(_fills_of(pieces)) for pieces in by_name.values()]


def _fills_of(requests: Sequence[Request]) -> Iterator[_Asked]:
    target = requests[0].target
    check_tiled(target.spec, [request.piece for request in requests])
    is_in_pieces = target.raw and target.in_order is None
    if (
        len(requests) == 1
        or is_in_pieces
        or not spans_chunks(target.spec, [r.piece for r in requests])
    ):
        yield from ([request] for request in requests)
    else:
        yield requests


def _planned(
    target: int, number: int, fills: Sequence[_Asked], made: Mapping[FillAt, Fill]
) -> TensorPlan:
    return TensorPlan(tuple(made[FillAt(target, number, of)] for of in range(len(fills))))


def _sharing(tensors: Sequence[Sequence[Sequence[_Asked]]]) -> list[list[tuple[FillAt, _Asked]]]:
    """Groups of fills that may share a read, in the order of the first target: of one source tensor, in one view."""
    found: dict[Hashable, list[tuple[FillAt, _Asked]]] = {}
    for target, of_target in enumerate(tensors):
        for tensor, fills in enumerate(of_target):
            for number, asked in enumerate(fills):
                at, piece = FillAt(target, tensor, number), asked[0].piece
                is_alone = len(asked) > 1 or piece.fill is not None
                shape = asked[0].source.spec.shape
                key: Hashable = at if is_alone else (piece.key, shape, piece.source_view)
                found.setdefault(key, []).append((at, asked))
    return list(found.values())


class _Shared(Struct, frozen=True):
    """Requests of a group that share a read, and the choice for them."""

    numbers: tuple[int, ...]
    choice: Choice


def _shared(
    asked: Sequence[_Asked], room: _Room, refusable: Sequence[Request], metadata_bytes: int
) -> list[_Shared]:
    """As few reads for a group as memory and processor time allow; a refusal is about all of ``refusable``."""
    if len(asked[0]) > 1:
        return [_Shared((0,), _joint(asked[0], room, metadata_bytes))]
    requests = [one for (one,) in asked]
    by_box: dict[Hashable, list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        by_box[request.piece.source_box].append(number)
    apart = []
    for numbers in by_box.values():
        found = _of_one_box(numbers, requests, room)
        if found is None:
            raise _refusal(refusable, room.memory, metadata_bytes)
        apart += found
    if len(by_box) == 1 or any(r.target.in_order for r in requests):
        return apart  # what is written in order goes through its own files
    return min((apart, *_grouped(requests, room)), key=_seconds_of)


def _seconds_of(reads: Sequence[_Shared]) -> float:
    return sum(seconds(read.choice) for read in reads)


MOST_GROUPS = 64
"""Most groups of fills that are priced, each with a read of its own."""

MOST_GROUPED = 512
"""Fills of which only one group is made: pricing takes some 20 µs for each, as often as there are ways to group them."""


def _grouped(requests: Sequence[Request], room: _Room) -> Iterator[list[_Shared]]:
    """All fills in one read, in two, three, five, …

    Of stacked layers some fit into the memory whole, where all of them would be written in pieces.
    """
    order = sorted(range(len(requests)), key=lambda n: requests[n].piece.source_box.start)
    most = 1 if len(requests) > MOST_GROUPED else min(MOST_GROUPS, len(requests) - 1)
    for parts in _ways(order, most):
        found = [_read_of(part, requests, room) for part in parts]
        reads = [read for read in found if read is not None]
        if len(reads) == len(found):
            yield reads


def _ways(numbers: Sequence[int], most: int) -> Iterator[list[Sequence[int]]]:
    """All together, in two parts of about one size, in three, five, …, at ``most`` in so many."""
    count = 1
    while count <= most:
        ends = [number * len(numbers) // count for number in range(count + 1)]
        yield [numbers[a:b] for a, b in pairwise(ends)]
        count = -(-count * 3 // 2)


def _read_of(numbers: Sequence[int], requests: Sequence[Request], room: _Room) -> _Shared | None:
    choice = _within([requests[number] for number in numbers], room)
    return None if choice is None else _Shared(tuple(numbers), _paid_once(choice))


def _paid_once(choice: Choice) -> Choice:
    """The choice, in which only the first fill pays for what is read."""
    first, *others = choice.fills
    fills = [replace(f, price=replace(f.price, decoded_bytes=0, source_bytes=0)) for f in others]
    return replace(choice, fills=(first, *fills))


def _joint(requests: Sequence[Request], room: _Room, metadata_bytes: int) -> Choice:
    """The choice for pieces that are assembled together."""
    for memory in (room.task_share(requests), room.memory):
        choice = joint_choice(requests, memory)
        if choice.task_bytes <= memory:
            return choice
    least = joint_choice(requests, 0).task_bytes
    raise _refused(requests[0], least, room.memory, metadata_bytes)


def _within(requests: Sequence[Request], room: _Room) -> Choice | None:
    choice = cheapest(requests, room.task_share(requests), room.open_chunks)
    return choice or cheapest(requests, room.memory, room.open_chunks)


def _alone(request: Request, room: _Room) -> Choice | None:
    """The choice for a request that shares no read; its fill may have the names and places of another one."""
    key = request.geometry_alone
    if key not in room.alone:
        room.alone[key] = _within([request], room)
    return room.alone[key]


def _as_asked(asked: _Asked, fill: Fill) -> Fill:
    """The fill of requests with the same geometry, with the names of these."""
    return Fill(
        tuple([request.piece for request in asked]),
        tuple([request.source for request in asked]),
        asked[0].target,
        fill.strategy,
        fill.units,
        fill.band_bytes,
        fill.price,
        fill.at_once,
    )


def _of_one_box(
    numbers: Sequence[int], requests: Sequence[Request], room: _Room
) -> list[_Shared] | None:
    """Reads of requests that want the same box: each joins the read where it gains most. None where one does not fit."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        alike[requests[number].geometry if len(numbers) > 1 else None].append(number)
    reads: list[_Shared] = []
    for same in alike.values():
        alone = _alone(requests[same[0]], room)
        if alone is None:
            return None
        found = _of_alike(same, alone, requests, room)
        reads += [read for read in found if not _joins(read, reads, requests, room)]
    return reads


def _of_alike(
    numbers: Sequence[int], alone: Choice, requests: Sequence[Request], room: _Room
) -> list[_Shared]:
    """Reads of requests that differ in names only: one for all, two, three, five, …, or one for each.

    Parts of one size cost the same, so that one of each size is priced.
    """
    best = [_Shared((number,), alone) for number in numbers]
    choices: dict[int, Choice | None] = {1: alone}
    for parts in _ways(numbers, len(numbers) - 1):
        for part in parts:
            if len(part) not in choices:
                choices[len(part)] = _joined(part, alone.task_bytes, requests, room)
        found = [(tuple(part), choices[len(part)]) for part in parts]
        reads = [_Shared(part, choice) for part, choice in found if choice is not None]
        if len(reads) == len(parts):
            best = min(best, reads, key=_seconds_of)
    return best


def _joins(alone: _Shared, reads: list[_Shared], requests: Sequence[Request], room: _Room) -> bool:
    """Joins ``alone`` to the read where it gains most, of the latest ones; False where it gains nowhere."""
    best, place, gained = alone, -1, 0.0
    for number in range(max(0, len(reads) - MOST_GROUPS), len(reads)):
        read = reads[number]
        numbers = (*read.numbers, *alone.numbers)
        most = max(read.choice.task_bytes, alone.choice.task_bytes)
        joined = _joined(numbers, most, requests, room)
        if joined is not None:
            gain = seconds(read.choice) + seconds(alone.choice) - seconds(joined)
            if gain > gained:
                best, place, gained = _Shared(numbers, joined), number, gain
    if gained:
        reads[place] = best
    return gained > 0


def _joined(
    numbers: Sequence[int], most: int, requests: Sequence[Request], room: _Room
) -> Choice | None:
    """The choice for several requests in one read, of which none takes more than ``most`` bytes without the others."""
    if any(requests[n].target.in_order for n in numbers):
        return None  # each goes through its own files in order
    # If one of them already has all the memory for one task, the other may share it.
    share = room.task_share(requests)
    memory = share if most <= share else room.memory
    return cheapest([requests[n] for n in numbers], memory, room.open_chunks)


def _refusal(
    requests: Sequence[Request], max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    unlike = {r.geometry: r for r in requests}.values()
    need, _, request = max(
        ((smallest_memory(r), r.piece.target, r) for r in unlike), key=lambda n: n[:2]
    )
    return _refused(request, need, max_memory, metadata_bytes)


def _refused(
    request: Request, need: int, max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    """The refusal of a request that needs so many bytes for a task."""
    mib, smallest = -(-need // (1 << 20)), -(-(need + metadata_bytes) // (1 << 20))
    remedy = f"allow max_memory of {smallest}MiB"
    if not request.target.raw:
        remedy += ", write smaller chunks (chunk_bytes), or write without compression"
    return MemoryBudgetError(
        f"{request.piece.target!r} of shape {list(request.target.spec.shape)} needs at least {mib} MiB of buffers "
        f"({request.source.codec} chunks of {_shape(request.source)} to {request.target.codec} chunks of "
        f"{_shape(request.target)}), but {allowed_text(max_memory, metadata_bytes)}; {remedy}",
        smallest_bytes=smallest << 20,
    )


def allowed_text(max_memory: int, metadata_bytes: int) -> str:
    """The part of a refusal that says how much memory is left for buffers beside metadata."""
    text = f"{max(0, max_memory) / (1 << 20):.4g} MiB are"
    if not metadata_bytes:
        return f"{text} allowed"
    allowed, taken = (n / (1 << 20) for n in (max_memory + metadata_bytes, metadata_bytes))
    return f"{text} left of {allowed:.4g} MiB beside metadata of {taken:.4g} MiB"


def _shape(side: Side) -> str:
    return "×".join(map(str, side.spec.chunk_shape or side.spec.storage.largest)) or "a scalar"
