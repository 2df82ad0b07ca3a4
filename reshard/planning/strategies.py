"""The strategies by which one read of a tensor fills one target, or several at once.

Cuts that source and targets share divide a tensor into aligned blocks. Within a block, each source chunk can be decoded
once and each target chunk finished. Four strategies fill a block; the cheapest is chosen:

- whole, if the block is one small chunk in source and targets: nothing is cut;
- scatter, if the targets are raw: one source chunk per task, tiny buffers;
- weave, if the targets are raw but the rows of a single chunk are short: adjacent chunks along the trailing dimensions
  are decoded in lock step. The rows are then wide and need fewer writes and checksum calls;
- block: the target chunks of the block are assembled in memory. If they do not fit, the block is halved along the
  dimension that repeats the least decoding, until one target chunk is left.

Targets that share a read share its units, and each decoded band goes to all of them. If some are assembled in memory,
raw ones are still written piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial, reduce
from itertools import pairwise

from msgspec import Struct

from reshard.formats.compression import CHECKSUM
from reshard.geometry.grid import Cuts, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.cost import (
    BAND_BYTES,
    READ_BYTES_PER_SECOND,
    TASK_BAND_BYTES,
    Fill,
    Pace,
    chunks_per_unit,
    decoded_bytes,
    gains_at_once,
    price,
    task_bytes,
)
from reshard.planning.move import Move, Side, Strategy
from reshard.planning.placement import Placement

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

COPY_BYTES = 4 << 20
"""Time to copy a range of a file in the kernel."""


class Request(Struct, frozen=True):
    """A placement, and how its source and target are stored.

    Attributes:
        copy_bytes: memory to copy one chunk unchanged, if both sides store it alike.
    """

    placement: Placement
    source: Side
    target: Side
    copy_bytes: int = COPY_BYTES


Choice = tuple[Move, ...]
"""A move per request, in order; they share units, band and the memory of a task."""


def cheapest(requests: Sequence[Request], memory: int, max_open_chunks: int) -> Choice | None:
    """The moves of least processor time that fill all requests from one read, within ``memory`` per task.

    All requests read one box of one tensor. None if nothing fits.
    """
    fitting = [
        w for w in choices(requests, memory, max_open_chunks) if w[0].price.task_bytes <= memory
    ]
    return min(fitting, key=_processor_seconds, default=None)


def seconds(choice: Choice) -> float:
    """Seconds that a choice takes, reading included; only for comparing."""
    return _processor_seconds(choice) + choice[0].price.decoded_bytes / READ_BYTES_PER_SECOND


def _processor_seconds(choice: Choice) -> float:
    return sum(move.price.seconds for move in choice)


def choices(requests: Sequence[Request], memory: int, max_open_chunks: int) -> Iterator[Choice]:
    """Every choice worth pricing; if none fits into ``memory``, also those that need the least."""
    identical = sum(map(_is_identical, requests))
    if identical == len(requests):
        yield _copy(requests)
    if identical:
        return  # chunks that are copied encoded are never decoded, so there is nothing to share
    if all(map(_is_chunk_by_chunk, requests)):
        yield _whole(requests, memory)  # first: at equal price it has the least overhead
    is_raw = [request.target.raw for request in requests]
    if all(is_raw):
        rank = len(requests[0].placement.shape)
        for first_open_dim in range(rank, 0, -1):
            yield from _scatter(requests, memory, first_open_dim, max_open_chunks)
    elif any(is_raw):
        yield from _block(requests, ["scatter" if raw else "block" for raw in is_raw], memory)
    yield from _block(requests, ["block"] * len(requests), memory)


def _is_identical(request: Request) -> bool:
    """Whether every target chunk is some source chunk, encoded alike except perhaps for a checksum."""
    source, target = request.source, request.target
    alike = target.codec in (source.codec, f"{source.codec}{CHECKSUM}")
    is_padded_alike = source.spec.chunk_shape == target.spec.chunk_shape
    return not source.raw and alike and is_padded_alike and _has_equal_chunks(request)


def _has_equal_chunks(request: Request) -> bool:
    """Whether every target chunk has the elements of some source chunk."""
    placement, source, target = request.placement, request.source.spec, request.target.spec
    return (
        not placement.is_cast
        and source.storage == target.storage
        and placement == Placement.whole(source, target)
    )


def _is_chunk_by_chunk(request: Request) -> bool:
    """Whether chunks differ only in their encoding, are small, and have no padding to clear."""
    return (
        _has_equal_chunks(request)
        and request.source.spec.chunk_bytes <= BAND_BYTES
        and not _has_padding(request.source.spec)
        and not _has_padding(request.target.spec)
    )


def _has_padding(spec: TensorSpec) -> bool:
    return spec.chunk_shape is not None and not _divides(spec.chunk_shape, spec.shape)


def _divides(chunk: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n % c == 0 for n, c in zip(shape, chunk, strict=True))


def _whole(requests: Sequence[Request], memory: int) -> Choice:
    units, chunk = requests[0].target.spec.storage, requests[0].source.spec.chunk_bytes
    fills = _fills(requests, ["whole"] * len(requests))
    return _choice(fills, units, _pace(fills, units, memory, chunk, chunk))


def _copy(requests: Sequence[Request]) -> Choice:
    first = requests[0]
    units = first.placement.target_grid(first.target.spec.storage)
    need = max(request.copy_bytes for request in requests)
    pace = Pace(SMALLEST_BAND_BYTES, False, need)
    return _choice(_fills(requests, ["copy"] * len(requests)), units, pace)


def _scatter(
    requests: Sequence[Request], memory: int, first_open_dim: int, max_open_chunks: int
) -> Iterator[Choice]:
    """Source chunks from dimension ``first_open_dim`` on decoded side by side: all, half of them, …

    If ``first_open_dim`` equals the rank, one chunk is open, and the choice is a plain scatter.
    """
    source, source_grid = requests[0].source, _source_grid(requests)
    units: Grid | None = _widest(source_grid, first_open_dim)
    while units is not None:
        open_chunks = chunks_per_unit(units, source_grid)
        if open_chunks == 1 and first_open_dim < len(units.shape):
            return
        fills = _fills(requests, ["weave" if open_chunks > 1 else "scatter"] * len(requests))
        if open_chunks <= max_open_chunks:
            least = _least_band(source, open_chunks, first_open_dim)
            yield _choice(fills, units, _pace(fills, units, memory, least))
        units = _fewer_open_chunks(units, source_grid)


def _source_grid(requests: Sequence[Request]) -> Grid:
    first = requests[0]
    return first.placement.source_grid(first.source.spec.storage)


def _widest(source_grid: Grid, first_open_dim: int) -> Grid:
    """Source chunks joined along the dimensions in which several are open."""
    whole = Grid.whole(source_grid.shape)
    cuts = source_grid.cuts[:first_open_dim] + whole.cuts[first_open_dim:]
    return Grid(source_grid.shape, cuts)


def _fewer_open_chunks(units: Grid, source_grid: Grid) -> Grid | None:
    """Half as many open chunks along the first dimension that has several, so that rows stay as wide as possible."""
    for dim, cuts in enumerate(units.cuts):
        finer = _halve(cuts, source_grid.cuts[dim])
        if finer != cuts:
            return Grid(units.shape, (*units.cuts[:dim], finer, *units.cuts[dim + 1 :]))
    return None


def _least_band(source: Side, open_chunks: int, first_open_dim: int) -> int:
    """Several open chunks advance by whole rows of the dimensions in which they are open; a single one by elements."""
    chunk = source.spec.chunk_shape or source.spec.storage.largest
    return max(
        open_chunks * math.prod(chunk[first_open_dim:]) * source.spec.itemsize, SMALLEST_BAND_BYTES
    )


def _pace(
    fills: Sequence[Fill],
    units: Grid,
    memory: int,
    least: int = SMALLEST_BAND_BYTES,
    most: int = TASK_BAND_BYTES,
) -> Pace:
    """Chunks are decoded at once if that gains and fits; else in streams, in the widest bands that fit, or the
    smallest."""
    if gains_at_once(fills, units):
        at_once = _widest_bands(fills, units, memory, least, most, at_once=True)
        if at_once.task_bytes <= memory:
            return at_once
    return _widest_bands(fills, units, memory, least, most, at_once=False)


def _widest_bands(
    fills: Sequence[Fill], units: Grid, memory: int, least: int, most: int, *, at_once: bool
) -> Pace:
    need = partial(task_bytes, fills, units, at_once=at_once)
    band = max(most, least)
    while band > least and need(band) > memory:
        band = max(least, band // 2)
    return Pace(band, at_once, need(band))


def _block(
    requests: Sequence[Request], strategies: Sequence[Strategy], memory: int
) -> Iterator[Choice]:
    fills = _fills(requests, strategies)
    # A chunk is assembled from all of its bytes; pieces may be cut anywhere.
    assembled = reduce(
        Grid.common,
        (f.placement.target_grid(f.target.spec.storage) for f in fills if f.strategy == "block"),
    )
    slices = requests[0].target.in_order
    if slices is None:
        units = _source_grid(requests).common(assembled)
    else:
        units = _aligned_rows(requests[0], slices, assembled)
    halve = _best_halving if slices is None else _first_halving
    while True:
        pace = _pace(fills, units, memory)
        halved = halve(requests[0], units, assembled)
        if halved is None:
            break
        is_small = slices is None or not _is_halved_for_free(requests[0], units, halved)
        if is_small and pace.task_bytes <= memory:
            break
        units = halved
    yield _choice(fills, units, pace)


def _aligned_rows(request: Request, slices: Grid, assembled: Grid) -> Grid:
    """The slices, cut in their first dimension that has several chunks wherever a source chunk ends too."""
    placement = request.placement
    units = placement.target_grid(slices)
    source = placement.source_grid(request.source.spec.storage)
    for dim, (cuts, finer) in enumerate(zip(units.cuts, assembled.cuts, strict=True)):
        if finer != cuts:
            common = set(finer) & {*source.cuts[dim], *cuts}
            return Grid(
                units.shape, (*units.cuts[:dim], tuple(sorted(common)), *units.cuts[dim + 1 :])
            )
    return units


def _is_halved_for_free(request: Request, units: Grid, halved: Grid) -> bool:
    """Whether halves are read as one would be. What is written in order then goes on its way while the next half is read."""
    source, placement = request.source, request.placement
    if source.raw:
        return True
    return decoded_bytes(placement, source, halved) == decoded_bytes(placement, source, units)


def _best_halving(request: Request, units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the dimension that adds the least decoding, or None at single chunks."""
    halvings = [
        Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
        for d, cuts in enumerate(units.cuts)
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts
    ]
    decoded = [
        (decoded_bytes(request.placement, request.source, u), i) for i, u in enumerate(halvings)
    ]
    return halvings[min(decoded)[1]] if decoded else None


def _first_halving(_: Request, units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the first dimension in which they have several chunks, so that the chunks of each follow one
    another row-major; None at single chunks."""
    for d, cuts in enumerate(units.cuts):
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts:
            return Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
    return None


@lru_cache(maxsize=4096)
def _halve(units: Cuts, cuts: Cuts) -> Cuts:
    """Every unit with more than one part is cut near its middle, at a cut of ``cuts``."""
    position = {cut: i for i, cut in enumerate(cuts)}
    finer = [0]
    for a, b in pairwise(units):
        middle = (position[a] + position[b]) // 2
        if middle > position[a]:
            finer.append(cuts[middle])
        finer.append(b)
    return tuple(finer)


def _fills(requests: Sequence[Request], strategies: Sequence[Strategy]) -> list[Fill]:
    return [
        Fill(strategy, request.placement, request.source, request.target)
        for request, strategy in zip(requests, strategies, strict=True)
    ]


def _choice(fills: Sequence[Fill], units: Grid, pace: Pace) -> Choice:
    return tuple(
        Move(
            fill.placement,
            fill.source,
            fill.target,
            fill.strategy,
            units,
            pace.band_bytes,
            price(fill, units, pace, is_decoded=number > 0),
            pace.at_once,
        )
        for number, fill in enumerate(fills)
    )


def smallest_memory(request: Request) -> int:
    """The least memory with which ``request`` can be carried out."""
    return min(choice[0].price.task_bytes for choice in choices([request], 0, max_open_chunks=1))
