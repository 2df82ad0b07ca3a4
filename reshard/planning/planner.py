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
from reshard.planning.joint import joint_read
from reshard.planning.multi_plan import FillAt, MultiPlan, Read
from reshard.planning.piece import check_tiled, spans_chunks
from reshard.planning.shared_reads import Budget, shared_reads
from reshard.planning.strategies import COPY_BYTES, SharedRead, WantedPiece, smallest_memory
from reshard.planning.task_memory import PROCESS_BYTES, counted_bytes
from reshard.planning.tensor_plan import Fill, Plan, Side, TensorPlan

__all__ = [
    "COPY_BYTES",
    "WantedPiece",
    "allowed_text",
    "make_multi_plan",
    "make_plan",
    "smallest_memory",
]


def make_plan(
    wanted_pieces: Sequence[WantedPiece],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> Plan:
    """The plan of one target; ``make_multi_plan`` makes the plan of several."""
    return make_multi_plan([wanted_pieces], max_memory, workers, metadata_bytes, processes).plans[0]


def make_multi_plan(
    wanted_pieces: Sequence[Sequence[WantedPiece]],
    max_memory: int,
    workers: int,
    metadata_bytes: int = 0,
    processes: int = 0,
) -> MultiPlan:
    """A plan for the wanted pieces of each of several targets, within one budget.

    Wanted pieces of one target that name one tensor are its pieces. Workers are threads of ``processes`` processes, or of this one
    if that is 0.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for everything, if no
    strategy of a wanted piece fits. Raises PlanError if the pieces of a tensor do not tile it.
    """
    counted = counted_bytes(metadata_bytes) + processes * PROCESS_BYTES
    budget = Budget(max_memory - counted, workers)
    tensors = [_tensors(of_target) for of_target in wanted_pieces]
    made: dict[FillAt, Fill] = {}
    reads: list[Read] = []
    known: dict[Hashable, list[SharedRead]] = {}
    for sharing in _sharing(tensors):
        asked = [one for _, some in sharing for one in some]
        key = _geometry(asked)
        if key not in known:
            # The refusal names the largest tensor of one target, or of several targets a tensor that shares the read.
            refusable = wanted_pieces[0] if len(wanted_pieces) == 1 else asked
            known[key] = _shared([some for _, some in sharing], budget, refusable, counted)
        for shared in known[key]:
            read, fills = _read_of(shared, sharing)
            reads.append(read)
            made.update(fills)
    plans = tuple(
        Plan(
            _planned(target, of_target, made),
            budget.memory,
            workers,
            metadata_bytes,
            max_memory,
            processes,
        )
        for target, of_target in enumerate(tensors)
    )
    return MultiPlan(plans, tuple(reads))


def _read_of(
    shared: SharedRead, sharing: Sequence[tuple[FillAt, _OneFill]]
) -> tuple[Read, dict[FillAt, Fill]]:
    """A read and its fills, each with the names that were asked for."""
    places = [sharing[number][0] for number in shared.numbers]
    numbered = zip(shared.numbers, shared.fills, strict=True)
    fills = [_as_asked(sharing[number][1], fill) for number, fill in numbered]
    read = Read.of(places, fills, shared.units)
    return read, dict(zip(places, fills, strict=True))


def _geometry(wanted_pieces: Sequence[WantedPiece]) -> Hashable:
    """A key of wanted pieces; those with equal keys are planned alike."""
    if len(wanted_pieces) == 1:
        return wanted_pieces[0].geometry_alone
    return tuple([wanted.geometry for wanted in wanted_pieces])


_OneFill = Sequence[WantedPiece]
"""The wanted pieces of one fill: one, or several whose pieces are assembled together."""


def _tensors(wanted_pieces: Sequence[WantedPiece]) -> list[list[_OneFill]]:
    """The fills of each tensor of a target, in the order of the wanted pieces; PlanError if pieces do not tile a tensor."""
    by_name: dict[str, list[WantedPiece]] = defaultdict(list)
    for wanted in wanted_pieces:
        by_name[wanted.piece.target].append(wanted)
    return [list(_fills_of(pieces)) for pieces in by_name.values()]


def _fills_of(wanted_pieces: Sequence[WantedPiece]) -> Iterator[_OneFill]:
    target = wanted_pieces[0].target
    check_tiled(target.spec, [wanted.piece for wanted in wanted_pieces])
    is_in_pieces = target.raw and target.in_order is None
    if (
        len(wanted_pieces) == 1
        or is_in_pieces
        or not spans_chunks(target.spec, [r.piece for r in wanted_pieces])
    ):
        yield from ([wanted] for wanted in wanted_pieces)
    else:
        yield wanted_pieces


def _planned(
    target: int, tensors: Sequence[Sequence[_OneFill]], made: Mapping[FillAt, Fill]
) -> tuple[TensorPlan, ...]:
    """The tensors of a target with the fills that were made for them."""
    return tuple(
        TensorPlan(tuple(made[FillAt(target, number, of)] for of in range(len(fills))))
        for number, fills in enumerate(tensors)
    )


def _sharing(
    tensors: Sequence[Sequence[Sequence[_OneFill]]],
) -> list[list[tuple[FillAt, _OneFill]]]:
    """Groups of fills that may share a read, in the order of the first target: of one source tensor, in one view."""
    found: dict[Hashable, list[tuple[FillAt, _OneFill]]] = {}
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
    asked: Sequence[_OneFill], budget: Budget, refusable: Sequence[WantedPiece], metadata_bytes: int
) -> list[SharedRead]:
    """As few reads for a group as memory and processor time allow; a refusal considers all of ``refusable``."""
    if len(asked[0]) > 1:
        return [_joint(asked[0], budget, metadata_bytes)]
    found = shared_reads([one for (one,) in asked], budget)
    if found is None:
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


def _as_asked(asked: _OneFill, fill: Fill) -> Fill:
    """A fill that was made for wanted pieces of the same geometry, with the names of ``asked``."""
    return Fill(
        tuple([wanted.piece for wanted in asked]),
        tuple([wanted.source for wanted in asked]),
        asked[0].target,
        fill.strategy,
        fill.units,
        fill.band_bytes,
        fill.price,
        fill.at_once,
    )


def _refusal(
    wanted_pieces: Sequence[WantedPiece], max_memory: int, metadata_bytes: int
) -> MemoryBudgetError:
    unlike = {r.geometry: r for r in wanted_pieces}.values()
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
