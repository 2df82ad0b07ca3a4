"""The cost of a task, as arithmetic over shapes: the memory that it takes, the time of a strategy, and the share of processes.

Metadata takes a part of ``max_memory``, and so do processes, if they pay; the rest is for buffers. The time is in closed form: it grows
with the number of cuts, never with pairs of chunks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from reshard.answers.shared import Strategy
from reshard.errors import MemoryBudgetError
from reshard.geometry.grid import Cuts, Grid
from reshard.geometry.view import View
from reshard.planning.piece import Piece, inverse
from reshard.planning.plans import MultiPlan, Price, Side

BAND_BYTES = 2 << 20
"""Decoded bytes at once: large enough that calls cost little, small enough to stay in cache."""

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

TASK_BAND_BYTES = 4 << 20
"""The same for a task of a conversion, whose workers wait for the interpreter's lock more often than for memory."""

TURNED_BAND_BYTES = 16 << 20
"""The same if the target's rows lie across those of the source: a band then has a short run of each target row."""

GATHERED_BYTES = 64 << 20
"""Decoded bytes of such bands that are gathered in the target's order before they are written piece by piece. The kernel takes three
times as long for runs of 8 KiB as for runs of 64 KiB (measured)."""

AT_ONCE_BYTES = 32 << 20
"""Bytes of all chunks together that a task decodes at once. Beyond that, fresh memory and cache misses cost more than
decoding at once gains (measured)."""

TASK_OVERHEAD_BYTES = 2 << 20
"""Checksum scratch, file objects and small arrays that each task needs besides its buffers."""

CAST_SCRATCH_BYTES = 2 << 20
"""Casts run over slabs of 12 Ki elements; their statistics need a few temporaries."""

RECORD_BYTES = 1 << 10
"""Bytes that a task keeps for each chunk that it reads or writes: its place, its box, its checksum (measured)."""


class TaskBuffers(Struct, frozen=True):
    """The pace of elements through a task, and the memory that this takes.

    Attributes:
        band_bytes: decoded bytes that pass at once.
        at_once: true if source chunks are decoded at once instead of in a stream.
        task_bytes: memory of one task.
        gathered_bytes: decoded bytes of turned bands that are gathered before they are written.
    """

    band_bytes: int
    at_once: bool
    task_bytes: int
    gathered_bytes: int = 0


class Reading(Struct, frozen=True):
    """The chunks that are decoded for one or several unpriced fills.

    Attributes:
        grid: the source's chunks within the box that is read; in a view, chunks that are boxes of it.
        units: boxes within the box that is read; a task decodes every chunk that its unit touches.
        view: of the source, if the box that is read is a box of a view.
        start: of the box that is read, in the view.
    """

    source: Side
    grid: Grid
    units: Grid
    view: View | None = None
    start: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        """The most chunks that one unit touches."""
        if self.view is None:
            return chunks_per_unit(self.units, self.grid)
        spec = self.source.spec
        return self.view.touched(self.units, self.start, spec.storage, spec.chunk_shape)[1]

    @property
    def pairs(self) -> int:
        """The number of pairs of a unit and a chunk that it touches; in a view at most so many."""
        if self.view is None:
            return math.prod(map(_overlaps, self.units.cuts, self.grid.cuts))
        return self.units.count * self.chunks


class UnpricedFill(Struct, frozen=True):
    """A piece with a strategy, before it has a price.

    Attributes:
        units: boxes of the piece.
        numbers: of the wanted pieces that it represents; they differ in names and places only.
    """

    strategy: Strategy
    piece: Piece
    source: Side
    target: Side
    units: Grid
    numbers: Sequence[int] = (0,)

    @property
    def chunks(self) -> int:
        """The most target chunks that one unit touches."""
        return chunks_per_unit(self.units, self.piece.target_grid(self.target.spec.storage))

    @property
    def in_pieces(self) -> bool:
        """True if it is written piece by piece, not chunk by chunk."""
        return self.strategy in ("scatter", "weave")

    @property
    def gathers(self) -> bool:
        """True if its bands are gathered before they are written: each has but a short run of every target row."""
        return self.strategy == "scatter" and is_turned(self.piece)


def task_bytes(
    reading: Reading,
    unpriced: Sequence[UnpricedFill],
    band_bytes: int,
    *,
    at_once: bool = False,
    gathered_bytes: int = 0,
) -> int:
    """Memory of a task that decodes a unit once and fills all of ``unpriced`` from it.

    It is the sum of: the decoded band, or, with ``at_once``, all chunks that are open side by side; the interleaved
    band, if chunks are interleaved; pieces as they are written and the target rows that they form, for one target at a
    time, or the encoded bytes of a chunk that is decoded at once, if they are more; the target chunks that are
    assembled, and the bands that are gathered, for all targets; the decoders, or later an encoder, if it is more.
    """
    source, is_interleaved = reading.source, _is_interleaved(unpriced)
    open_chunks = reading.chunks if is_interleaved else 1
    # Lists, here and below: a plan prices each tensor some ten times, and generators take twice as long.
    pieces = max([_piece_bytes(f, band_bytes) for f in unpriced if f.in_pieces], default=0)
    blocks = [
        len(f.numbers) * f.chunks * f.target.spec.chunk_bytes
        for f in unpriced
        if f.strategy == "block"
    ]
    assembled, rows = sum(blocks), BAND_BYTES if blocks else 0
    gathered = sum([len(f.numbers) * _gathered(f, gathered_bytes) for f in unpriced if f.gathers])
    passing = (band_bytes if is_interleaved else 0) + 2 * pieces + rows
    if at_once:
        decoded, decoders = open_chunks * source.spec.chunk_bytes, source.stream_bytes
        passing = max(passing, source.encoded_bytes)
    else:
        decoded, decoders = band_bytes, open_chunks * source.stream_bytes
    coding = _coding_bytes(unpriced, decoders)
    return decoded + passing + assembled + gathered + coding + _fixed_bytes(reading, unpriced)


def _gathered(fill: UnpricedFill, most: int) -> int:
    """Bytes of the bands that a unit gathers."""
    return _piece_bytes(fill, min(most, math.prod(fill.units.largest) * fill.source.spec.itemsize))


def _coding_bytes(unpriced: Sequence[UnpricedFill], decoders: int) -> int:
    """Bytes of decoders or encoders, the larger. Decoders end before chunks are encoded; what a target keeps longer adds to both."""
    encoded = [f.target for f in unpriced if not f.in_pieces]
    ending = max([t.stream_bytes for t in encoded if t.ends_with_chunk], default=0)
    kept = max([t.stream_bytes for t in encoded if not t.ends_with_chunk], default=0)
    return max(decoders, ending) + kept


def gains_at_once(reading: Reading, unpriced: Sequence[UnpricedFill]) -> bool:
    """True if decoding the chunks of a unit at once is faster, if there is memory for it.

    A chunk that several units share is not faster at once: a stream stops at the end of the part that its unit needs.
    """
    source, units = reading.source, reading.units
    open_chunks = reading.chunks if _is_interleaved(unpriced) else 1
    together = open_chunks * source.spec.chunk_bytes
    is_small = together <= AT_ONCE_BYTES
    return source.encoded_bytes > 0 and is_small and units.common(reading.grid) == units


def _is_interleaved(unpriced: Sequence[UnpricedFill]) -> bool:
    """True if the source chunks that a unit touches are decoded side by side."""
    return "weave" in [fill.strategy for fill in unpriced]


def _piece_bytes(fill: UnpricedFill, band_bytes: int) -> int:
    return band_bytes * fill.target.spec.itemsize // fill.source.spec.itemsize


def _fixed_bytes(reading: Reading, unpriced: Sequence[UnpricedFill]) -> int:
    cast = CAST_SCRATCH_BYTES if any(fill.piece.is_computed for fill in unpriced) else 0
    chunks = reading.chunks + sum([len(fill.numbers) * fill.chunks for fill in unpriced])
    return TASK_OVERHEAD_BYTES + cast + RECORD_BYTES * chunks


def decoded_bytes(reading: Reading) -> int:
    """Bytes decoded if each unit decodes every source chunk that it touches."""
    return _overlapped_bytes(reading.units, reading)


def touched_bytes(reading: Reading) -> int:
    """Stored bytes of the touched source chunks, each counted once."""
    return _overlapped_bytes(Grid.whole(reading.grid.shape), reading)


def _overlapped_bytes(units: Grid, reading: Reading) -> int:
    """Sum over units of the stored bytes of the source chunks that each touches.

    The chunks of a unit form a box of chunks, so the sum is a product of sums per dimension.
    """
    if 0 in units.shape:
        return 0
    spec, view = reading.source.spec, reading.view
    if view is not None:
        elements, _ = view.touched(units, reading.start, spec.storage, spec.chunk_shape)
        return elements * spec.itemsize
    total, padded = spec.itemsize, spec.chunk_shape
    for dim, (unit_cuts, cuts) in enumerate(zip(units.cuts, reading.grid.cuts, strict=True)):
        if padded is None:
            total *= _overlapped_elements(unit_cuts, cuts)
        else:
            total *= _overlaps(unit_cuts, cuts) * padded[dim]
    return total


@lru_cache(maxsize=4096)
def _overlaps(units: Cuts, cuts: Cuts) -> int:
    """The number of pairs of a unit and a part of ``cuts`` that overlap."""
    return sum(bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units))


@lru_cache(maxsize=4096)
def _overlapped_elements(units: Cuts, cuts: Cuts) -> int:
    """The sum of the sizes of the parts in these pairs."""
    return sum(
        cuts[bisect_left(cuts, b)] - cuts[bisect_right(cuts, a) - 1] for a, b in pairwise(units)
    )


def chunks_per_unit(units: Grid, grid: Grid) -> int:
    """The most chunks of ``grid`` that one unit overlaps."""
    return math.prod(map(_parts_per_unit, units.cuts, grid.cuts))


@lru_cache(maxsize=4096)
def _parts_per_unit(units: Cuts, cuts: Cuts) -> int:
    """The most parts of ``cuts`` that one unit overlaps."""
    return max(
        (bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units)), default=0
    )


THREADS_PER_PROCESS = 4
"""Threads that one interpreter keeps busy. A task holds the interpreter's lock for 9 to 27 % of its processor time (measured,
see docs/explanation/performance.md), so that threads stop helping at 4 to 11."""

PAYING_BYTES = 4 << 30
"""Decoded bytes from which on processes are started. Starting them takes a quarter of a second (measured); five cores move
about half a GiB in that time."""

PROCESS_BYTES = 64 << 20
"""Memory of a process besides buffers: the interpreter and libraries (37 to 50 MiB measured)."""

MEMORY_PARTS = 4
"""Processes take at most one part in four of ``max_memory``; the rest is for buffers."""


def plan_with_processes(make_plan: Callable[[int], MultiPlan], max_memory: int) -> MultiPlan:
    """The plan that ``make_plan`` gives for the best number of processes; for 0, threads of this process do it all.

    Processes share no buffers, so that each task must fit into its worker's share of the memory. If one does not fit, or if
    the smaller memory makes tasks read more, threads do it all.
    """
    in_threads = make_plan(0)
    count = _process_count(in_threads, max_memory)
    if not count:
        return in_threads
    try:
        in_processes = make_plan(count)
    except MemoryBudgetError:
        return in_threads
    reads_more = in_processes.decoded_bytes > in_threads.decoded_bytes
    return in_threads if reads_more or not _fits_shares(in_processes) else in_processes


def _process_count(plan: MultiPlan, max_memory: int) -> int:
    if plan.workers <= THREADS_PER_PROCESS or plan.decoded_bytes < PAYING_BYTES:
        return 0
    count = min(
        -(-plan.workers // THREADS_PER_PROCESS), max_memory // MEMORY_PARTS // PROCESS_BYTES
    )
    return count if count > 1 else 0


def _fits_shares(plan: MultiPlan) -> bool:
    share = plan.max_memory // plan.workers
    return all(price.task_bytes <= share for each in plan.plans for price in each.prices)


INCLUDED_BYTES = 16 << 20
"""Metadata that is not counted: interpreter and libraries take some 70 to 95 of the 128 MiB that a
process may have beside ``max_memory`` (measured)."""

LEAST_BUFFERS = 12 << 20
"""Memory that tensors of common shapes need, for a refusal before any tensor is known."""


def counted_bytes(metadata_bytes: int) -> int:
    """The bytes of ``max_memory`` that ``metadata_bytes`` of metadata take."""
    return max(0, metadata_bytes - INCLUDED_BYTES)


def bytes_beside(metadata_bytes: int, max_memory: int, what: str, buffers: int) -> int:
    """The bytes of ``max_memory`` left for buffers.

    Raises MemoryBudgetError if fewer than ``buffers`` are left, the smallest size of buffers; ``what`` names the metadata,
    such as ``"100,000 leaves in 'ckpt'"``.
    """
    left = max_memory - counted_bytes(metadata_bytes)
    if counted_bytes(metadata_bytes) and left < buffers:
        mib = -(-(counted_bytes(metadata_bytes) + buffers) // (1 << 20))
        raise MemoryBudgetError(
            f"the metadata of {what} takes {metadata_bytes / (1 << 20):.4g} MiB in memory, of which "
            f"{INCLUDED_BYTES >> 20} MiB are not counted, and buffers at least {buffers / (1 << 20):.4g} MiB, but "
            f"{max_memory / (1 << 20):.4g} MiB are allowed; allow max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )
    return left


DECODE_BYTES_PER_SECOND = 1.4e9
COPY_BYTES_PER_SECOND = 3.0e9
ENCODE_BYTES_PER_SECOND = 0.5e9
SECONDS_PER_WRITE = 6e-6
SECONDS_PER_TASK = 1e-4
SECONDS_PER_CHUNK_BAND = 1e-5
DIGEST_BYTES_PER_SECOND = 12e9
SECONDS_PER_RUN = 1e-6
"""An order of magnitude on one core of a small server. Such constants only rank strategies."""

READ_BYTES_PER_SECOND = 0.5e9
"""Speed of a disk or a network; it only decides whether several targets share a read."""

AT_ONCE_GAIN = 1.25
"""Speed of decoding a chunk at once, divided by that of a stream (measured)."""

CACHED_BYTES = 8 << 20
"""Bands above this leave the processor's cache between decoding and writing."""


def price(
    fill: UnpricedFill, reading: Reading, buffers: TaskBuffers, *, is_decoded: bool = False
) -> Price:
    """The cost of filling a piece. With ``is_decoded``, another fill pays for decoding and for the source's digest."""
    strategy, piece, source, target = fill.strategy, fill.piece, fill.source, fill.target
    source_grid = piece.source_grid(source.spec.storage)
    decoded, stored = decoded_bytes(reading), touched_bytes(reading)
    moved = math.prod(piece.shape) * target.spec.itemsize
    target_grid = piece.target_grid(target.spec.storage)
    written = _written_bytes(target, moved) * target.copies
    # Pieces are as wide as a source chunk, or as a row of a unit if chunks are interleaved.
    passing = fill.units
    if strategy == "scatter" and fill.units != source_grid:
        passing = fill.units.refine(source_grid)
    together = max(buffers.band_bytes, buffers.gathered_bytes)
    writes = _writes(fill, passing, target_grid, together) * target.copies
    seconds = _seconds(fill, moved, writes, fill.units.count)
    if strategy != "copy":
        if not is_decoded:
            seconds += _decode_seconds(source, decoded, buffers)
            # The source is read chunk by chunk, or row by row of a whole unit if chunks are interleaved.
            read = fill.units if strategy == "weave" else source_grid
            seconds += _digest_seconds(read, source.spec.itemsize, moved)
        seconds += _digest_seconds(passing, target.spec.itemsize, moved)
    if strategy == "scatter" and is_turned(piece):
        seconds += writes * SECONDS_PER_RUN
    if strategy == "weave":
        seconds += decoded / buffers.band_bytes * reading.chunks * SECONDS_PER_CHUNK_BAND
    if together > CACHED_BYTES:
        seconds += moved / COPY_BYTES_PER_SECOND
    return Price(fill.units.count, decoded, stored, written, writes, buffers.task_bytes, seconds)


def _seconds(fill: UnpricedFill, moved: int, writes: int, tasks: int) -> float:
    """Time to copy, encode and write, without decoding and checksums."""
    if fill.strategy == "copy":
        return moved / COPY_BYTES_PER_SECOND / 2 + writes * SECONDS_PER_WRITE
    encode = 0.0 if fill.target.raw else moved / ENCODE_BYTES_PER_SECOND
    copy = moved / COPY_BYTES_PER_SECOND * (1.3 if fill.strategy == "block" else 1.0)
    return encode + copy + writes * SECONDS_PER_WRITE + tasks * SECONDS_PER_TASK


def _decode_seconds(source: Side, nbytes: int, buffers: TaskBuffers) -> float:
    if source.raw:
        return 0.0
    return nbytes / DECODE_BYTES_PER_SECOND / (AT_ONCE_GAIN if buffers.at_once else 1.0)


def _digest_seconds(rows: Grid, itemsize: int, nbytes: int) -> float:
    """Time for checksums of ``nbytes`` in the boxes of ``rows``: one call per contiguous run."""
    run = itemsize
    for part, parts in zip(reversed(rows.largest), reversed(rows.parts), strict=True):
        run *= max(1, part)
        if parts > 1:
            break
    return nbytes / DIGEST_BYTES_PER_SECOND + nbytes / run * SECONDS_PER_RUN


def _written_bytes(target: Side, moved: int) -> int:
    """The share of ``moved`` bytes in what is written of a target: its chunks with their padding and checksums."""
    spec = target.spec
    if spec.chunk_shape is None:
        return moved
    whole = spec.storage.count * (spec.chunk_bytes + 4)
    return whole * moved // spec.nbytes if spec.nbytes else whole


def is_turned(piece: Piece) -> bool:
    """True if the target's rows lie across those of the source."""
    order = [dim for dim in piece.axis_order if piece.shape[dim] > 1]
    return bool(order) and order[-1] != max(order)


def _band_extents(piece: Piece, source: Side, band_bytes: int) -> tuple[int, ...]:
    """The extent of one band along each dimension of a piece; bands are cut from the chunks of the source."""
    chunk = source.spec.chunk_shape or source.spec.storage.largest
    shape = list(chunk)
    if piece.source_view is not None:
        shape = [
            n
            for extent, sizes in zip(chunk, piece.source_view.sizes, strict=True)
            for n in _split_extent(extent, sizes)
        ]
    nbytes = source.spec.itemsize
    for dim in reversed(range(len(shape))):
        rows = min(shape[dim], max(1, band_bytes // max(1, nbytes)))  # of an empty tensor 0
        nbytes *= shape[dim]
        shape[dim] = rows
    return tuple(shape)


def _split_extent(extent: int, sizes: Sequence[int]) -> list[int]:
    """The extents of a chunk along the dimensions of these ``sizes`` into which a view splits one dimension."""
    found = []
    for number, size in enumerate(sizes):
        behind = math.prod(sizes[number + 1 :])
        found.append(min(size, max(1, extent // max(1, behind))))
    return found


def _writes(fill: UnpricedFill, passing: Grid, target_grid: Grid, band_bytes: int) -> int:
    """Number of writes that fill the target once, if pieces pass in the boxes of ``passing``."""
    if not fill.in_pieces:
        return target_grid.count
    piece, extents = fill.piece, fill.piece.shape
    if fill.strategy == "scatter":
        extents = _band_extents(piece, fill.source, band_bytes)
    return _scattered_writes(piece, passing, target_grid, fill.target, extents)


def _scattered_writes(
    piece: Piece, units: Grid, target_grid: Grid, target: Side, extents: Sequence[int]
) -> int:
    """Number of contiguous writes that fill the target when pieces cut by both grids are written one by one.

    Within a target chunk, a run covers the trailing dimensions that no unit and no band (``extents``) cuts; it ends in the
    innermost dimension that is cut.
    """
    refined = units.refine(target_grid)
    target_dims = inverse(piece.axis_order)
    run = 1
    for dim in piece.axis_order[::-1]:
        whole = max(1, refined.largest[dim])
        run *= max(1, min(whole, extents[dim]))
        if (
            refined.parts[dim] != target_grid.parts[dim]
            or extents[dim] < whole
            or _is_padded(target, target_dims[dim])
        ):
            break
    return max(1, math.prod(piece.shape) // run)


def _is_padded(target: Side, dim: int) -> bool:
    chunk = target.spec.chunk_shape
    is_known = chunk is not None and dim < len(chunk)  # beyond it: a dimension of a view
    return chunk is not None and is_known and target.spec.shape[dim] % chunk[dim] != 0
