"""Plans the cheapest strategy per tensor that fits the memory (see ``strategies``).

Memory: a task's need is arithmetic over chunk shapes, known before anything is read. The planner first looks for a
strategy that fits into ``max_memory / workers``. If there is none, it allows all of ``max_memory`` for a task, and
fewer tasks run at once. If still none fits, the plan is refused.

Several targets of one source: every tensor is first planned for each target alone. Then targets join one read of the
tensor, one after the other, wherever that costs less and fits as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct

from reshard.errors import MemoryBudgetError, PlanError
from reshard.planning.metadata_share import counted_bytes
from reshard.planning.move import Move, Plan, Side
from reshard.planning.multi_plan import MoveAt, MultiPlan
from reshard.planning.processes import PROCESS_BYTES
from reshard.planning.strategies import (
    COPY_BYTES,
    Choice,
    Request,
    cheapest,
    seconds,
    smallest_memory,
)

__all__ = [
    "COPY_BYTES",
    "Request",
    "allowed_text",
    "make_multi_plan",
    "make_plan",
    "open_files_per_task",
    "plan_moves",
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
    """

    memory: int
    workers: int

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
    """A plan for all requests; its workers are threads of ``processes`` processes, or of one if those are 0.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for everything, if no
    strategy of a request fits. Raises PlanError if not exactly one request fills a target.
    """
    _check_targets(requests)
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    moves = tuple(plan_moves(requests, max_memory - counted, workers, counted))
    return Plan(moves, max_memory - counted, workers, metadata_bytes, max_memory, processes)


def make_multi_plan(
    requests: Sequence[Sequence[Request]],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for the requests of each of several targets, all from one source, within one budget.

    Raises what ``make_plan`` raises, about any target that does not fit alone.
    """
    if len(requests) == 1:
        return MultiPlan.alone(
            make_plan(requests[0], max_memory, workers, metadata_bytes, processes)
        )
    for of_target in requests:
        _check_targets(of_target)
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    room = _Room(max_memory - counted, workers)
    moves: list[list[Move | None]] = [[None] * len(of_target) for of_target in requests]
    reads: list[tuple[MoveAt, ...]] = []
    known: dict[Hashable, list[_Read]] = {}
    for sharing in _same_boxes(requests):
        asked = [requests[at.target][at.move] for at in sharing]
        key = tuple(map(_geometry, asked))
        if key not in known:
            known[key] = _reads(asked, room, counted)
        for read in known[key]:
            reads.append(tuple(sharing[number] for number in read.numbers))
            for number, move in zip(read.numbers, read.choice, strict=True):
                at = sharing[number]
                moves[at.target][at.move] = _as_asked(asked[number], move)
    plans = (
        Plan(
            tuple(m for m in found if m),
            room.memory,
            workers,
            metadata_bytes,
            max_memory,
            processes,
        )
        for found in moves
    )
    return MultiPlan(tuple(plans), tuple(reads))


def _check_targets(requests: Sequence[Request]) -> None:
    """Refuse several moves to one target: their pieces would share chunks, and no move could tell if a chunk is
    complete."""
    sources: dict[str, str] = {}
    for request in requests:
        placement, spec = request.placement, request.target.spec
        name = placement.target
        if name in sources:
            raise PlanError(
                f"{name!r} would be filled from {sources[name]!r} and from {placement.source!r}; a tensor is "
                "filled by one placement: give one of them another name"
            )
        if placement.target_box.shape != spec.shape:
            raise PlanError(
                f"{name!r} of shape {list(spec.shape)} would be filled from {placement.source!r} only in "
                f"{placement.target_box}; a placement fills all of its target: give the target that shape"
            )
        sources[name] = placement.source


def plan_moves(
    requests: Sequence[Request], max_memory: int, workers: int, metadata_bytes: int = 0
) -> Iterator[Move]:
    """One move per request, in order; requests that differ in name only are priced once.

    ``max_memory`` is for buffers alone; ``metadata_bytes`` are already subtracted from it.
    """
    room = _Room(max_memory, workers)
    known: dict[Hashable, Move] = {}
    for request in requests:
        key = _geometry(request)
        move = known.get(key)
        if move is None:
            choice = _within([request], room)
            if choice is None:
                raise _refusal(requests, max_memory, metadata_bytes)
            known[key] = move = choice[0]
        yield _as_asked(request, move)


def _within(requests: Sequence[Request], room: _Room) -> Choice | None:
    choice = cheapest(requests, room.task_share(requests), room.open_chunks)
    return choice or cheapest(requests, room.memory, room.open_chunks)


def _as_asked(request: Request, move: Move) -> Move:
    """The move of a request with the same geometry, with the names of this request."""
    return Move(
        request.placement,
        request.source,
        request.target,
        move.strategy,
        move.units,
        move.band_bytes,
        move.price,
        move.at_once,
    )


def _same_boxes(requests: Sequence[Sequence[Request]]) -> list[list[MoveAt]]:
    """Groups of moves that read the same box of the same tensor, in the order of the first target."""
    found: dict[Hashable, list[MoveAt]] = {}
    for target, of_target in enumerate(requests):
        for number, request in enumerate(of_target):
            placement = request.placement
            key = (placement.source, placement.source_box)
            found.setdefault(key, []).append(MoveAt(target, number))
    return list(found.values())


class _Read(Struct, frozen=True):
    """Requests that share a read, and the choice of moves for them."""

    numbers: tuple[int, ...]
    choice: Choice


def _reads(requests: Sequence[Request], room: _Room, metadata_bytes: int) -> list[_Read]:
    """As few reads as memory and processor time allow: each request joins the read where it gains most."""
    reads: list[_Read] = []
    for number, request in enumerate(requests):
        choice = _within([request], room)
        if choice is None:
            raise _refusal(requests, room.memory, metadata_bytes)
        _place(_Read((number,), choice), reads, requests, room)
    return reads


def _place(alone: _Read, reads: list[_Read], requests: Sequence[Request], room: _Room) -> None:
    """Joins ``alone`` to the read where it gains most, or adds it to ``reads``."""
    best, place, gained = alone, len(reads), 0.0
    for number, read in enumerate(reads):
        joined = _joined(read, alone, requests, room)
        if joined is not None:
            gain = seconds(read.choice) + seconds(alone.choice) - seconds(joined.choice)
            if gain > gained:
                best, place, gained = joined, number, gain
    reads[place : place + 1] = [best]


def _joined(read: _Read, alone: _Read, requests: Sequence[Request], room: _Room) -> _Read | None:
    if any(requests[n].target.in_order for n in (*read.numbers, *alone.numbers)):
        return None  # each goes through its own files in order
    numbers = (*read.numbers, *alone.numbers)
    most = max(read.choice[0].price.task_bytes, alone.choice[0].price.task_bytes)
    # If one of them already has all the memory for one task, the other may share it.
    share = room.task_share(requests)
    memory = share if most <= share else room.memory
    choice = cheapest([requests[n] for n in numbers], memory, room.open_chunks)
    return None if choice is None else _Read(numbers, choice)


def _geometry(request: Request) -> Hashable:
    """Everything that the choice of a strategy depends on."""
    p = request.placement
    placement = (p.source_box, p.target_box, p.axis_order, p.source_dtype, p.target_dtype)
    return (placement, request.copy_bytes, _stored(request.source), _stored(request.target))


def _stored(side: Side) -> Hashable:
    spec = side.spec
    return (
        spec.shape,
        spec.storage.cuts,
        spec.chunk_shape,
        side.codec,
        side.raw,
        side.stream_bytes,
        side.encoded_bytes,
        None if side.in_order is None else side.in_order.cuts,
        side.ends_with_chunk,
        side.is_distant,
    )


def _refusal(
    requests: Sequence[Request], max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    unlike = {_geometry(r): r for r in requests}.values()
    need, name, request = max(
        ((smallest_memory(r), r.placement.target, r) for r in unlike), key=lambda n: n[:2]
    )
    mib, smallest = -(-need // (1 << 20)), -(-(need + metadata_bytes) // (1 << 20))
    remedy = f"allow max_memory of {smallest}MiB"
    if not request.target.raw:
        remedy += ", write smaller chunks (chunk_bytes), or write without compression"
    return MemoryBudgetError(
        f"{name!r} of shape {list(request.target.spec.shape)} needs at least {mib} MiB of buffers "
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
