"""The memory of tasks: what each reads and fills, the pace of elements through it, the bytes that this takes, and their share.

Metadata takes a part of ``max_memory``, and so do processes, if they pay; the rest is for buffers.
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
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.piece import Piece
from reshard.planning.tensor_plan import Side

BAND_BYTES = 2 << 20
"""Decoded bytes at once: large enough that calls cost little, small enough to stay in cache."""

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

TASK_BAND_BYTES = 4 << 20
"""The same for a task of a conversion. It makes more calls for each band, so that its workers wait for the interpreter's
lock more often than for memory."""

TURNED_BAND_BYTES = 16 << 20
"""The same if the target's rows lie across those of the source: a band then has a short run of each target row."""

AT_ONCE_BYTES = 32 << 20
"""Bytes of all chunks together that a task decodes at once. Beyond that, fresh memory and cache misses cost more than
decoding at once gains (measured)."""

TASK_OVERHEAD_BYTES = 2 << 20
"""Checksum scratch, file objects and small arrays that each task needs besides its buffers."""

CAST_SCRATCH_BYTES = 2 << 20
"""Casts run over slabs of 64 Ki elements; their statistics need a few temporaries."""

RECORD_BYTES = 1 << 10
"""Bytes that a task keeps for each chunk that it reads or writes: its place, its box, its checksum (measured)."""


class Pace(Struct, frozen=True):
    """The pace of elements through a task, and the memory that this takes.

    Attributes:
        band_bytes: decoded bytes that pass at once.
        at_once: true if source chunks are decoded at once instead of in a stream.
        task_bytes: memory of one task.
    """

    band_bytes: int
    at_once: bool
    task_bytes: int


class Reading(Struct, frozen=True):
    """The chunks that are decoded for one or several drafts.

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


class Draft(Struct, frozen=True):
    """A piece with a strategy, before it has a price.

    Attributes:
        units: boxes of the piece.
        numbers: of the demands that it represents; they differ in names and places only.
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


def task_bytes(
    reading: Reading, drafts: Sequence[Draft], band_bytes: int, *, at_once: bool = False
) -> int:
    """Memory of a task that decodes a unit once and fills all of ``drafts`` from it.

    It is the sum of: the decoded band, or, with ``at_once``, all chunks that are open side by side; the interleaved
    band, if chunks are interleaved; pieces as they are written and the target rows that they form, for one target at a
    time, or the encoded bytes of a chunk that is decoded at once, if they are more; the target chunks that are
    assembled, for all targets; the decoders, or later an encoder, if it is more.
    """
    source, is_interleaved = reading.source, _is_interleaved(drafts)
    open_chunks = reading.chunks if is_interleaved else 1
    # Lists, here and below: a plan prices each tensor some ten times, and generators take twice as long.
    pieces = max([_piece_bytes(f, band_bytes) for f in drafts if f.in_pieces], default=0)
    blocks = [
        len(f.numbers) * f.chunks * f.target.spec.chunk_bytes
        for f in drafts
        if f.strategy == "block"
    ]
    assembled, rows = sum(blocks), BAND_BYTES if blocks else 0
    passing = (band_bytes if is_interleaved else 0) + 2 * pieces + rows
    if at_once:
        decoded, decoders = open_chunks * source.spec.chunk_bytes, source.stream_bytes
        passing = max(passing, source.encoded_bytes)
    else:
        decoded, decoders = band_bytes, open_chunks * source.stream_bytes
    coding = _coding_bytes(drafts, decoders)
    return decoded + passing + assembled + coding + _fixed_bytes(reading, drafts)


def _coding_bytes(drafts: Sequence[Draft], decoders: int) -> int:
    """Bytes of decoders or encoders, the larger. Decoders end before chunks are encoded; what a target keeps longer adds to both."""
    encoded = [f.target for f in drafts if not f.in_pieces]
    ending = max([t.stream_bytes for t in encoded if t.ends_with_chunk], default=0)
    kept = max([t.stream_bytes for t in encoded if not t.ends_with_chunk], default=0)
    return max(decoders, ending) + kept


def gains_at_once(reading: Reading, drafts: Sequence[Draft]) -> bool:
    """True if decoding the chunks of a unit at once is faster, if there is memory for it.

    A chunk that several units share is not faster at once: a stream stops at the end of the part that its unit needs.
    """
    source, units = reading.source, reading.units
    open_chunks = reading.chunks if _is_interleaved(drafts) else 1
    together = open_chunks * source.spec.chunk_bytes
    is_small = together <= AT_ONCE_BYTES
    return source.encoded_bytes > 0 and is_small and units.common(reading.grid) == units


def _is_interleaved(drafts: Sequence[Draft]) -> bool:
    """True if the source chunks that a unit touches are decoded side by side."""
    return "weave" in [draft.strategy for draft in drafts]


def _piece_bytes(draft: Draft, band_bytes: int) -> int:
    return band_bytes * draft.target.spec.itemsize // draft.source.spec.itemsize


def _fixed_bytes(reading: Reading, drafts: Sequence[Draft]) -> int:
    cast = CAST_SCRATCH_BYTES if any(draft.piece.is_computed for draft in drafts) else 0
    chunks = reading.chunks + sum([len(draft.numbers) * draft.chunks for draft in drafts])
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
    return all(fill.price.task_bytes <= share for each in plan.plans for fill in each.fills)


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
