"""The strategies by which one read of a tensor fills one target, or several at once.

Cuts that source and targets share divide a tensor into aligned blocks. Within a block, each source chunk can be decoded
once and each target chunk finished. Four strategies fill a block; the cheapest is chosen:

- whole, if the block is one small chunk in source and targets: nothing is cut;
- scatter, if the targets are raw: one source chunk per task, tiny buffers;
- weave, if the targets are raw but the rows of a single chunk are short: adjacent chunks along the trailing dimensions
  are decoded in lock step. The rows are then wide and need fewer writes and checksum calls;
- block: the target chunks of the block are assembled in memory. If they do not fit, the block is halved along the
  dimension that repeats the least decoding, until one target chunk is left.

Requests that share a read share its units, and each decoded band goes to all of them. If some are assembled in memory,
raw ones are still written piece by piece. They need not want the same: of a tensor with many layers in each chunk, every
layer may become a tensor of its own, and each chunk is decoded once for all of them.

Where target chunks span several pieces, they are assembled from all of these, each read in its turn (``joint_choice``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from reshard.formats.compression import CHECKSUM
from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.cost import (
    BAND_BYTES,
    READ_BYTES_PER_SECOND,
    SECONDS_PER_TASK,
    TASK_BAND_BYTES,
    Draft,
    Pace,
    Reading,
    chunks_per_unit,
    decoded_bytes,
    gains_at_once,
    price,
    task_bytes,
    touched_bytes,
)
from reshard.planning.piece import Piece
from reshard.planning.tensor_plan import Fill, Price, Side, Strategy, around
from reshard.planning.tiling import spans_chunks

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

COPY_BYTES = 4 << 20
"""Memory to copy a range of a file in the kernel."""


class Request(Struct, frozen=True):
    """A piece, and how its source and target are stored.

    Attributes:
        copy_bytes: memory to copy one chunk unchanged, if both sides store it alike.
    """

    piece: Piece
    source: Side
    target: Side
    copy_bytes: int = COPY_BYTES


class Choice(Struct, frozen=True):
    """A fill per request, in order; they share band and the memory of a task.

    Attributes:
        box: what is read, in the source's view; of a joint fill the box of the target that is filled.
        units: boxes of it, which tasks read.
    """

    fills: tuple[Fill, ...]
    box: Box
    units: Grid

    @property
    def task_bytes(self) -> int:
        return self.fills[0].price.task_bytes


def cheapest(requests: Sequence[Request], memory: int, max_open_chunks: int) -> Choice | None:
    """The fills of least processor time that serve all requests from one read, within ``memory`` per task.

    All requests read one tensor, in one view. None if nothing fits.
    """
    fitting = [w for w in choices(requests, memory, max_open_chunks) if w.task_bytes <= memory]
    return min(fitting, key=_processor_seconds, default=None)


def seconds(choice: Choice) -> float:
    """Seconds that a choice takes, reading included; only for comparing."""
    decoded = choice.fills[0].price.decoded_bytes
    return _processor_seconds(choice) + decoded / READ_BYTES_PER_SECOND


def _processor_seconds(choice: Choice) -> float:
    return sum(fill.price.seconds for fill in choice.fills)


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
    frame = _Frame.of(requests)
    if all(is_raw):
        # Only bands that all take whole, and that are boxes of the source, are put side by side.
        is_plain = frame.is_one and requests[0].piece.source_view is None
        ranks = range(len(frame.box.start), 0, -1)
        for first_open_dim in ranks if is_plain else ranks[:1]:
            yield from _scatter(frame, memory, first_open_dim, max_open_chunks)
    elif any(is_raw):
        yield from _block(frame, ["scatter" if raw else "block" for raw in is_raw], memory)
    if not any(_shares_chunks(request) for request in requests):
        yield from _block(frame, ["block"] * len(requests), memory)


def _shares_chunks(request: Request) -> bool:
    """Whether other pieces fill the rest of a raw target chunk, so that this one cannot assemble it."""
    piece, spec = request.piece, request.target.spec
    is_whole = piece.target_view is None and piece.target_box == Box.full(spec.shape)
    return not is_whole and spans_chunks(spec, [piece])


class _Frame(Struct, frozen=True):
    """The box of a source that requests read, and the grids within it.

    Attributes:
        is_one: whether each of them wants all of the box.
        source: the chunks of the source.
        targets: for each request, where a unit may be cut so that it holds whole target chunks.
    """

    requests: Sequence[Request]
    box: Box
    is_one: bool
    source: Grid
    targets: tuple[Grid, ...]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> _Frame:
        pieces = [request.piece for request in requests]
        box = around([piece.source_box for piece in pieces])
        first = requests[0]
        view, storage = pieces[0].source_view, first.source.spec.storage
        source = (storage if view is None else view.grid(storage)).clip(box)
        grids = tuple(r.piece.target_grid(r.target.spec.storage) for r in requests)
        is_one = all(piece.source_box == box for piece in pieces)
        if not is_one:
            grids = _within(box, source, [piece.source_box for piece in pieces], grids)
        return cls(requests, box, is_one, source, grids)

    def drafts(self, strategies: Sequence[Strategy], units: Grid) -> list[Draft]:
        return [
            Draft(strategy, r.piece, r.source, r.target, self._own(r.piece, units))
            for r, strategy in zip(self.requests, strategies, strict=True)
        ]

    def _own(self, piece: Piece, units: Grid) -> Grid:
        """The units as boxes of a piece."""
        return units if self.is_one else units.clip(piece.source_box.relative_to(self.box.start))

    def reading(self, units: Grid) -> Reading:
        return Reading(self.requests[0].source, self.source, units)

    def decoded_bytes(self, units: Grid) -> int:
        return decoded_bytes(self.reading(units))

    def choice(self, drafts: Sequence[Draft], units: Grid, pace: Pace) -> Choice:
        reading = self.reading(units)
        fills = tuple(
            Fill(
                (draft.piece,),
                (draft.source,),
                draft.target,
                draft.strategy,
                draft.units,
                pace.band_bytes,
                self._price(draft, reading, pace, is_first=number == 0),
                pace.at_once,
            )
            for number, draft in enumerate(drafts)
        )
        return Choice(fills, self.box, units)

    def _price(self, draft: Draft, reading: Reading, pace: Pace, *, is_first: bool) -> Price:
        """The first pays for decoding; where each takes a part of what is read, also for the tasks."""
        found = price(draft, reading, pace, is_decoded=not is_first)
        if is_first or self.is_one:
            return found
        return replace(found, seconds=found.seconds - SECONDS_PER_TASK * draft.units.count)


def _within(
    box: Box, source: Grid, pieces: Sequence[Box], grids: Sequence[Grid]
) -> tuple[Grid, ...]:
    """The grids of pieces within a box that is larger than they are.

    A grid has the cuts of its own piece, and beyond it every cut that any other grid has there.
    """
    places = [piece.relative_to(box.start) for piece in pieces]
    every = [set(cuts) for cuts in source.cuts]
    for place, grid in zip(places, grids, strict=True):
        for dim, cuts in enumerate(grid.cuts):
            every[dim].update(cut + place.start[dim] for cut in cuts)
    return tuple(
        Grid(
            box.shape,
            tuple(
                tuple(
                    sorted(
                        {c for c in of if c <= first or c >= last} | {cut + first for cut in cuts}
                    )
                )
                for of, cuts, first, last in zip(
                    every, grid.cuts, place.start, place.stop, strict=True
                )
            ),
        )
        for place, grid in zip(places, grids, strict=True)
    )


def _is_identical(request: Request) -> bool:
    """Whether every target chunk is some source chunk, encoded alike except perhaps for a checksum."""
    source, target = request.source, request.target
    alike = target.codec in (source.codec, f"{source.codec}{CHECKSUM}")
    is_padded_alike = source.spec.chunk_shape == target.spec.chunk_shape
    return not source.raw and alike and is_padded_alike and _has_equal_chunks(request)


def _has_equal_chunks(request: Request) -> bool:
    """Whether every target chunk has the elements of some source chunk."""
    piece, source, target = request.piece, request.source.spec, request.target.spec
    return (
        not piece.is_cast
        and source.storage == target.storage
        and piece == Piece.whole(source, target, checkpoint=piece.checkpoint)
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
    frame = _Frame.of(requests)
    drafts = frame.drafts(["whole"] * len(requests), units)
    return frame.choice(drafts, units, _pace(frame.reading(units), drafts, memory, chunk, chunk))


def _copy(requests: Sequence[Request]) -> Choice:
    frame, first = _Frame.of(requests), requests[0]
    units = first.piece.target_grid(first.target.spec.storage)
    need = max(request.copy_bytes for request in requests)
    pace = Pace(SMALLEST_BAND_BYTES, False, need)
    return frame.choice(frame.drafts(["copy"] * len(requests), units), units, pace)


def _scatter(
    frame: _Frame, memory: int, first_open_dim: int, max_open_chunks: int
) -> Iterator[Choice]:
    """Source chunks from dimension ``first_open_dim`` on decoded side by side: all, half of them, …

    If ``first_open_dim`` equals the rank, one chunk is open, and the choice is a plain scatter.
    """
    source, source_grid = frame.requests[0].source, frame.source
    units: Grid | None = _widest(source_grid, first_open_dim)
    while units is not None:
        open_chunks = chunks_per_unit(units, source_grid)
        if open_chunks == 1 and first_open_dim < len(units.shape):
            return
        strategy: Strategy = "weave" if open_chunks > 1 else "scatter"
        if open_chunks <= max_open_chunks:
            drafts = frame.drafts([strategy] * len(frame.requests), units)
            least = _least_band(source, open_chunks, first_open_dim)
            pace = _pace(frame.reading(units), drafts, memory, least)
            yield frame.choice(drafts, units, pace)
        units = _fewer_open_chunks(units, source_grid)


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
    reading: Reading,
    drafts: Sequence[Draft],
    memory: int,
    least: int = SMALLEST_BAND_BYTES,
    most: int = TASK_BAND_BYTES,
) -> Pace:
    """Chunks are decoded at once if that gains and fits; else in streams, in the widest bands that fit, or the
    smallest."""
    if gains_at_once(reading, drafts):
        at_once = _widest_bands(reading, drafts, memory, least, most, at_once=True)
        if at_once.task_bytes <= memory:
            return at_once
    return _widest_bands(reading, drafts, memory, least, most, at_once=False)


def _widest_bands(
    reading: Reading,
    drafts: Sequence[Draft],
    memory: int,
    least: int,
    most: int,
    *,
    at_once: bool,
) -> Pace:
    need = partial(task_bytes, reading, drafts, at_once=at_once)
    band = max(most, least)
    while band > least and need(band) > memory:
        band = max(least, band // 2)
    return Pace(band, at_once, need(band))


def _block(frame: _Frame, strategies: Sequence[Strategy], memory: int) -> Iterator[Choice]:
    # A chunk is assembled from all of its bytes; pieces may be cut anywhere.
    assembled = reduce(
        Grid.common,
        (g for g, strategy in zip(frame.targets, strategies, strict=True) if strategy == "block"),
    )
    slices = frame.requests[0].target.in_order
    if slices is None:
        units = frame.source.common(assembled)
    else:
        units = _aligned_rows(frame.requests[0], slices, assembled)
    while True:
        drafts = frame.drafts(strategies, units)
        pace = _pace(frame.reading(units), drafts, memory)
        if slices is None:
            halved = _best_halving(frame.decoded_bytes, units, assembled)
        else:
            halved = _first_halving(units, assembled)
        if halved is None:
            break
        is_small = slices is None or not _is_halved_for_free(frame, units, halved)
        if is_small and pace.task_bytes <= memory:
            break
        units = halved
    yield frame.choice(drafts, units, pace)


def _aligned_rows(request: Request, slices: Grid, assembled: Grid) -> Grid:
    """The slices, cut in their first dimension that has several chunks wherever a source chunk ends too."""
    piece = request.piece
    units = piece.target_grid(slices)
    source = piece.source_grid(request.source.spec.storage)
    for dim, (cuts, finer) in enumerate(zip(units.cuts, assembled.cuts, strict=True)):
        if finer != cuts:
            common = set(finer) & {*source.cuts[dim], *cuts}
            return Grid(
                units.shape, (*units.cuts[:dim], tuple(sorted(common)), *units.cuts[dim + 1 :])
            )
    return units


def _is_halved_for_free(frame: _Frame, units: Grid, halved: Grid) -> bool:
    """Whether halves are read as one would be. What is written in order then goes on its way while the next half is read."""
    is_raw = frame.requests[0].source.raw
    return is_raw or frame.decoded_bytes(halved) == frame.decoded_bytes(units)


def _best_halving(decoded: Callable[[Grid], int], units: Grid, assembled: Grid) -> Grid | None:
    """The units halved along the dimension that adds the least decoding, or None at single chunks."""
    halvings = [
        Grid(units.shape, (*units.cuts[:d], finer, *units.cuts[d + 1 :]))
        for d, cuts in enumerate(units.cuts)
        if (finer := _halve(cuts, assembled.cuts[d])) != cuts
    ]
    counted = [(decoded(u), i) for i, u in enumerate(halvings)]
    return halvings[min(counted)[1]] if counted else None


def _first_halving(units: Grid, assembled: Grid) -> Grid | None:
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


def joint_choice(requests: Sequence[Request], memory: int) -> Choice:
    """One fill of all pieces of a tensor: units are boxes of the target, as large as fits into ``memory``, or one chunk."""
    target = requests[0].target
    assembled = target.spec.storage
    box, slices = Box.full(target.spec.shape), target.in_order
    units = Grid.whole(target.spec.shape) if slices is None else slices
    while True:
        readings = [_reading_of(request, units) for request in requests]
        drafts = [
            Draft("block", r.piece, r.source, r.target, reading.units)
            for r, reading in zip(requests, readings, strict=True)
        ]
        pace = _joint_pace(readings, drafts, units, memory)
        if slices is None:
            halved = _best_halving(partial(_joint_bytes, requests), units, assembled)
        else:
            halved = _first_halving(units, assembled)
        if halved is None or pace.task_bytes <= memory:
            break
        units = halved
    prices = [price(d, r, pace) for d, r in zip(drafts, readings, strict=True)]
    cost = Price(
        units.count,
        sum(map(decoded_bytes, readings)),
        sum(map(touched_bytes, readings)),
        sum(p.written_bytes for p in prices),
        assembled.count * target.copies,
        pace.task_bytes,
        sum(p.seconds for p in prices),
    )
    pieces, sources = tuple(r.piece for r in requests), tuple(r.source for r in requests)
    fill = Fill(pieces, sources, target, "block", units, pace.band_bytes, cost)
    return Choice((fill,), box, units)


def _joint_pace(
    readings: Sequence[Reading], drafts: Sequence[Draft], units: Grid, memory: int
) -> Pace:
    """Pieces are read one after the other, so that a task needs the most of any, and all of its target chunks."""
    target = drafts[0].target.spec
    chunks = chunks_per_unit(units, target.storage)

    def need(band: int) -> int:
        most = max(
            task_bytes(reading, [draft], band) - draft.chunks * target.chunk_bytes
            for reading, draft in zip(readings, drafts, strict=True)
        )
        return most + chunks * target.chunk_bytes

    band = TASK_BAND_BYTES
    while band > SMALLEST_BAND_BYTES and need(band) > memory:
        band //= 2
    return Pace(band, False, need(band))


def _reading_of(request: Request, units: Grid) -> Reading:
    """What units of a target decode for one of its pieces."""
    piece = request.piece
    grid = piece.source_grid(request.source.spec.storage)
    return Reading(request.source, grid, piece.target_grid(units))


def _joint_bytes(requests: Sequence[Request], units: Grid) -> int:
    return sum(decoded_bytes(_reading_of(request, units)) for request in requests)


def smallest_memory(request: Request) -> int:
    """The least memory with which ``request`` can be carried out."""
    return min(choice.task_bytes for choice in choices([request], 0, max_open_chunks=1))
