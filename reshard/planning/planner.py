"""From placements to a plan: the cheapest strategy per tensor that fits the memory.

Between cuts that source and target share lie aligned blocks: within one, each source chunk can be
decoded once and each target chunk be finished. Four ways to fill a block, told apart by price:

- whole, where the block is one small chunk on both sides: nothing needs to be cut;
- scatter, where the target is raw: one source chunk a task, tiny buffers;
- weave, where the target is raw but the rows of a single chunk are short: chunks that lie side by
  side along the trailing dimensions are decoded in lock step, so that wide rows pass, which cost
  fewer writes and fewer checksum calls;
- block: the block's target chunks in memory. A block that does not fit is halved along the
  dimension that repeats the least decoding, until one target chunk is left.

Memory: a task's need is arithmetic over chunk shapes, known before anything is read. A strategy is
first sought within ``max_memory / workers``; where none fits, within all of ``max_memory``, which
then lets fewer tasks run at once; where still none fits the plan is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from reshard.errors import MemoryBudgetError, PlanError
from reshard.layout.grid import Cuts, Grid
from reshard.planning.cost import (
    BAND_BYTES,
    block_bytes,
    chunks_per_unit,
    price,
    scatter_bytes,
    stored_chunk_bytes,
    whole_bytes,
)
from reshard.planning.metadata_share import counted_bytes
from reshard.planning.move import CHECKSUM, Move, Plan, Side, Strategy
from reshard.planning.placement import Placement

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

OPEN_FILES = 768
"""Files open at once in a run, sources and targets together; 1,024 is a common limit."""


COPY_BYTES = 4 << 20
"""Passing on a range of a file, which the kernel copies."""


def open_files_per_task(workers: int) -> int:
    """Files that one of ``workers`` tasks may have open, half of them for decoding in lock step."""
    return max(16, OPEN_FILES // workers)


@dataclass(frozen=True, slots=True)
class Request:
    """A placement and how both its ends are stored.

    Attributes:
        copy_bytes: memory of passing one chunk on as it is, where both ends store it alike.
    """

    placement: Placement
    source: Side
    target: Side
    copy_bytes: int = COPY_BYTES


def make_plan(
    requests: Sequence[Request], max_memory: int, workers: int, metadata_bytes: int = 0
) -> Plan:
    """A plan for all requests.

    Raises MemoryBudgetError, naming the tensor, its need and the smallest budget that works for
    everything, where a request fits in no way; PlanError where a target is not filled by exactly one.
    """
    _check_targets(requests)
    counted = counted_bytes(metadata_bytes)
    moves = tuple(plan_moves(requests, max_memory - counted, workers, counted))
    return Plan(moves, max_memory - counted, workers, metadata_bytes, max_memory)


def _check_targets(requests: Sequence[Request]) -> None:
    """Pieces of several moves would meet in one chunk, and none of them could say that it is whole."""
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

    ``max_memory`` is for buffers alone, ``metadata_bytes`` what was taken from it before.
    """
    known: dict[Hashable, Move] = {}
    for request in requests:
        key = _geometry(request)
        move = known.get(key)
        if move is None:
            lanes = open_files_per_task(workers) // 2
            move = _cheapest(request, max_memory // workers, lanes) or _cheapest(
                request, max_memory, lanes
            )
            if move is None:
                raise _refusal(requests, max_memory, metadata_bytes)
            known[key] = move
        yield Move(
            request.placement,
            request.source,
            request.target,
            move.strategy,
            move.units,
            move.band_bytes,
            move.price,
        )


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
    )


def _cheapest(request: Request, memory: int, max_lanes: int) -> Move | None:
    fitting = [m for m in _candidates(request, memory, max_lanes) if m.price.task_bytes <= memory]
    return min(fitting, key=lambda m: m.price.seconds, default=None)


def _candidates(request: Request, memory: int, max_lanes: int) -> Iterator[Move]:
    if _is_identical(request):
        yield _copy(request)
        return
    if _is_chunk_by_chunk(request):
        yield _whole(request)  # first: at equal price it has the least to do besides
    if request.target.raw:
        rank = len(request.placement.shape)
        for first_lane_dim in range(rank, 0, -1):
            yield from _scatter(request, memory, first_lane_dim, max_lanes)
    yield from _block(request, memory)


def _is_identical(request: Request) -> bool:
    """Whether every target chunk is some source chunk, encoded alike but perhaps for a checksum."""
    source, target = request.source, request.target
    alike = target.codec in (source.codec, f"{source.codec}{CHECKSUM}")
    return not source.raw and alike and _has_equal_chunks(request)


def _has_equal_chunks(request: Request) -> bool:
    """Whether every target chunk holds the elements of some source chunk, and as many bytes."""
    placement, source, target = request.placement, request.source.spec, request.target.spec
    return (
        not placement.is_cast
        and source.storage == target.storage
        and placement == Placement.whole(source, target)
        and source.chunk_shape == target.chunk_shape
    )


def _is_chunk_by_chunk(request: Request) -> bool:
    """Whether chunks are equal but for their encoding, small, and without padding to clear."""
    spec = request.source.spec
    return (
        _has_equal_chunks(request)
        and stored_chunk_bytes(request.source) <= BAND_BYTES
        and (spec.chunk_shape is None or _divides(spec.chunk_shape, spec.shape))
    )


def _divides(chunk: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n % c == 0 for n, c in zip(shape, chunk, strict=True))


def _whole(request: Request) -> Move:
    placement, source, target = request.placement, request.source, request.target
    units, chunk = target.spec.storage, stored_chunk_bytes(source)
    need = whole_bytes(placement, source, target, units, chunk)
    return _move(request, "whole", units, chunk, need)


def _copy(request: Request) -> Move:
    units = request.placement.target_grid(request.target.spec.storage)
    return _move(request, "copy", units, SMALLEST_BAND_BYTES, request.copy_bytes)


def _scatter(request: Request, memory: int, first_lane_dim: int, max_lanes: int) -> Iterator[Move]:
    """Source chunks from dimension ``first_lane_dim`` on decoded side by side: all, half of them, …

    With ``first_lane_dim`` equal to the rank there is one lane, and the move is a plain scatter.
    """
    placement, source, target = request.placement, request.source, request.target
    source_grid = placement.source_grid(source.spec.storage)
    units: Grid | None = _widest(source_grid, first_lane_dim)
    while units is not None:
        lanes = chunks_per_unit(units, source_grid)
        if lanes == 1 and first_lane_dim < len(units.shape):
            return
        need = partial(scatter_bytes, placement, source, target, units)
        band = _fit_band(need, memory, _least_band(source, lanes, first_lane_dim))
        if lanes <= max_lanes:
            yield _move(request, "weave" if lanes > 1 else "scatter", units, band, need(band))
        units = _fewer_lanes(units, source_grid)


def _widest(source_grid: Grid, first_lane_dim: int) -> Grid:
    """Source chunks joined all along the lane dimensions."""
    whole = Grid.whole(source_grid.shape)
    cuts = source_grid.cuts[:first_lane_dim] + whole.cuts[first_lane_dim:]
    return Grid(source_grid.shape, cuts)


def _fewer_lanes(units: Grid, source_grid: Grid) -> Grid | None:
    """Half the lanes along the first dimension that has several: rows stay as wide as they can."""
    for dim, cuts in enumerate(units.cuts):
        finer = _halve(cuts, source_grid.cuts[dim])
        if finer != cuts:
            return Grid(units.shape, (*units.cuts[:dim], finer, *units.cuts[dim + 1 :]))
    return None


def _least_band(source: Side, lanes: int, first_lane_dim: int) -> int:
    """Lanes advance by whole rows of the lane dimensions; for a single lane a row is one element."""
    chunk = source.spec.chunk_shape or source.spec.storage.largest
    return max(
        lanes * math.prod(chunk[first_lane_dim:]) * source.spec.itemsize, SMALLEST_BAND_BYTES
    )


def _fit_band(need: Callable[[int], int], memory: int, least: int) -> int:
    band = max(BAND_BYTES, least)
    while band > least and need(band) > memory:
        band = max(least, band // 2)
    return band


def _block(request: Request, memory: int) -> Iterator[Move]:
    placement, source, target = request.placement, request.source, request.target
    target_grid = placement.target_grid(target.spec.storage)
    units = placement.source_grid(source.spec.storage).common(target_grid)
    while True:
        need_of_band = partial(block_bytes, placement, source, target, units)
        band = _fit_band(need_of_band, memory, SMALLEST_BAND_BYTES)
        need = need_of_band(band)
        halved = None if need <= memory else _best_halving(request, units, target_grid)
        if halved is None:
            break
        units = halved
    yield _move(request, "block", units, band, need)


def _best_halving(request: Request, units: Grid, target_grid: Grid) -> Grid | None:
    """The units halved along the dimension that adds the least decoding, or None at single chunks."""
    halvings = [
        Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
        for d, cuts in enumerate(units.cuts)
        if (finer := _halve(cuts, target_grid.cuts[d])) != cuts
    ]
    prices = [
        (_move(request, "block", u, 0, 0).price.decoded_bytes, i) for i, u in enumerate(halvings)
    ]
    return halvings[min(prices)[1]] if prices else None


@lru_cache(maxsize=4096)
def _halve(units: Cuts, cuts: Cuts) -> Cuts:
    """A cut of ``cuts`` added in the middle of every unit that holds more than one part."""
    position = {cut: i for i, cut in enumerate(cuts)}
    finer = [0]
    for a, b in pairwise(units):
        middle = (position[a] + position[b]) // 2
        if middle > position[a]:
            finer.append(cuts[middle])
        finer.append(b)
    return tuple(finer)


def _move(request: Request, strategy: Strategy, units: Grid, band: int, task_bytes: int) -> Move:
    placement, source, target = request.placement, request.source, request.target
    cost = price(strategy, placement, source, target, units, task_bytes, band)
    return Move(placement, source, target, strategy, units, band, cost)


def smallest_memory(request: Request) -> int:
    """The least memory with which any strategy carries out ``request``."""
    return min(m.price.task_bytes for m in _candidates(request, 0, max_lanes=1))


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
        f"{_shape(request.target)}), but {_allowed(max_memory, metadata_bytes)}; {remedy}",
        smallest_bytes=smallest << 20,
    )


def _allowed(max_memory: int, metadata_bytes: int) -> str:
    text = f"{max(0, max_memory) / (1 << 20):.4g} MiB are"
    if not metadata_bytes:
        return f"{text} allowed"
    allowed, taken = (n / (1 << 20) for n in (max_memory + metadata_bytes, metadata_bytes))
    return f"{text} left of {allowed:.4g} MiB beside metadata of {taken:.4g} MiB"


def _shape(side: Side) -> str:
    return "×".join(map(str, side.spec.chunk_shape or side.spec.storage.largest)) or "a scalar"
