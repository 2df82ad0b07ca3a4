"""Plans the cheapest strategy for each piece of each tensor that fits the memory (see ``strategies``).

Memory: a task's need is arithmetic over chunk shapes, known before anything is read. The planner first looks for a
strategy that fits into ``max_memory / workers``. If there is none, it allows all of ``max_memory`` for a task, and
fewer tasks run at once. If still none fits, the plan is refused.

Pieces that come from one tensor share a read if that costs less and fits as well (see ``shared_reads``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from reshard.errors import MemoryBudgetError
from reshard.planning.joint import joint_choice
from reshard.planning.multi_plan import FillAt, MultiPlan, Read
from reshard.planning.piece import check_tiled, spans_chunks
from reshard.planning.shared_reads import Room, SharedRead, shared_reads
from reshard.planning.strategies import COPY_BYTES, Choice, Demand, smallest_memory
from reshard.planning.task_memory import PROCESS_BYTES, counted_bytes
from reshard.planning.tensor_plan import Fill, Plan, Side, TensorPlan

__all__ = [
    "COPY_BYTES",
    "Demand",
    "allowed_text",
    "make_multi_plan",
    "make_plan",
    "smallest_memory",
]


def make_plan(
    demands: Sequence[Demand],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> Plan:
    """The plan of one target; ``make_multi_plan`` makes the plan of several."""
    return make_multi_plan([demands], max_memory, workers, metadata_bytes, processes).plans[0]


def make_multi_plan(
    demands: Sequence[Sequence[Demand]],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for the demands of each of several targets, within one budget.

    Demands of one target that name one tensor are its pieces. Workers are threads of ``processes`` processes, or of this one
    if that is 0.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for everything, if no
    strategy of a demand fits. Raises PlanError if the pieces of a tensor do not tile it.
    """
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    room = Room(max_memory - counted, workers)
    tensors = [_tensors(of_target) for of_target in demands]
    made: dict[FillAt, Fill] = {}
    reads: list[Read] = []
    known: dict[Hashable, list[SharedRead]] = {}
    for sharing in _sharing(tensors):
        asked = [one for _, some in sharing for one in some]
        key = _geometry(asked)
        if key not in known:
            # The refusal names the largest tensor of one target, or of several targets a tensor that shares the read.
            refusable = demands[0] if len(demands) == 1 else asked
            known[key] = _shared([some for _, some in sharing], room, refusable, counted)
        for shared in known[key]:
            read, fills = _read_of(shared, sharing)
            reads.append(read)
            made.update(fills)
    plans = tuple(
        Plan(
            _planned(target, of_target, made),
            room.memory,
            workers,
            metadata_bytes,
            max_memory,
            processes,
        )
        for target, of_target in enumerate(tensors)
    )
    return MultiPlan(plans, tuple(reads))


def _read_of(
    shared: SharedRead, sharing: Sequence[tuple[FillAt, _Asked]]
) -> tuple[Read, dict[FillAt, Fill]]:
    """A read and its fills, each with the names that were asked for."""
    places = [sharing[number][0] for number in shared.numbers]
    numbered = zip(shared.numbers, shared.choice.fills, strict=True)
    fills = [_as_asked(sharing[number][1], fill) for number, fill in numbered]
    read = Read.of(places, fills, shared.choice.units)
    return read, dict(zip(places, fills, strict=True))


def _geometry(demands: Sequence[Demand]) -> Hashable:
    """A key of demands; those with equal keys are planned alike."""
    if len(demands) == 1:
        return demands[0].geometry_alone
    return tuple([demand.geometry for demand in demands])


_Asked = Sequence[Demand]
"""The demands of one fill: one, or several whose pieces are assembled together."""


def _tensors(demands: Sequence[Demand]) -> list[list[_Asked]]:
    """The fills of each tensor of a target, in the order of the demands; PlanError if pieces do not tile a tensor."""
    by_name: dict[str, list[Demand]] = defaultdict(list)
    for demand in demands:
        by_name[demand.piece.target].append(demand)
    return [list(_fills_of(pieces)) for pieces in by_name.values()]


def _fills_of(demands: Sequence[Demand]) -> Iterator[_Asked]:
    target = demands[0].target
    check_tiled(target.spec, [demand.piece for demand in demands])
    is_in_pieces = target.raw and target.in_order is None
    if (
        len(demands) == 1
        or is_in_pieces
        or not spans_chunks(target.spec, [r.piece for r in demands])
    ):
        yield from ([demand] for demand in demands)
    else:
        yield demands


def _planned(
    target: int, tensors: Sequence[Sequence[_Asked]], made: Mapping[FillAt, Fill]
) -> tuple[TensorPlan, ...]:
    """The tensors of a target with the fills that were made for them."""
    return tuple(
        TensorPlan(tuple(made[FillAt(target, number, of)] for of in range(len(fills))))
        for number, fills in enumerate(tensors)
    )


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


def _shared(
    asked: Sequence[_Asked], room: Room, refusable: Sequence[Demand], metadata_bytes: int
) -> list[SharedRead]:
    """As few reads for a group as memory and processor time allow; a refusal considers all of ``refusable``."""
    if len(asked[0]) > 1:
        return [SharedRead((0,), _joint(asked[0], room, metadata_bytes))]
    found = shared_reads([one for (one,) in asked], room)
    if found is None:
        raise _refusal(refusable, room.memory, metadata_bytes)
    return found


def _joint(demands: Sequence[Demand], room: Room, metadata_bytes: int) -> Choice:
    """The choice for pieces that are assembled together."""
    for memory in (room.task_share(demands), room.memory):
        choice = joint_choice(demands, memory)
        if choice.task_bytes <= memory:
            return choice
    least = joint_choice(demands, 0).task_bytes
    raise _refused(demands[0], least, room.memory, metadata_bytes)


def _as_asked(asked: _Asked, fill: Fill) -> Fill:
    """A fill that was made for demands of the same geometry, with the names of ``asked``."""
    return Fill(
        tuple([demand.piece for demand in asked]),
        tuple([demand.source for demand in asked]),
        asked[0].target,
        fill.strategy,
        fill.units,
        fill.band_bytes,
        fill.price,
        fill.at_once,
    )


def _refusal(demands: Sequence[Demand], max_memory: int, metadata_bytes: int) -> MemoryBudgetError:
    unlike = {r.geometry: r for r in demands}.values()
    need, _, demand = max(
        ((smallest_memory(r), r.piece.target, r) for r in unlike), key=lambda n: n[:2]
    )
    return _refused(demand, need, max_memory, metadata_bytes)


def _refused(demand: Demand, need: int, max_memory: int, metadata_bytes: int) -> MemoryBudgetError:
    """The refusal of a demand whose task takes ``need`` bytes."""
    mib, smallest = -(-need // (1 << 20)), -(-(need + metadata_bytes) // (1 << 20))
    remedy = f"allow max_memory of {smallest}MiB"
    if not demand.target.raw:
        remedy += ", write smaller chunks (chunk_bytes), or write without compression"
    return MemoryBudgetError(
        f"{demand.piece.target!r} of shape {list(demand.target.spec.shape)} needs at least {mib} MiB of buffers "
        f"({demand.source.codec} chunks of {_shape(demand.source)} to {demand.target.codec} chunks of "
        f"{_shape(demand.target)}), but {allowed_text(max_memory, metadata_bytes)}; {remedy}",
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
