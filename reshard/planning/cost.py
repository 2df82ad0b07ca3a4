"""The cost of a strategy in closed form: it grows with the number of cuts, never with pairs of chunks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from reshard.geometry.grid import Cuts, Grid
from reshard.planning.move import Price, Side, Strategy
from reshard.planning.placement import Placement, inverse

DECODE_BYTES_PER_SECOND = 1.4e9
COPY_BYTES_PER_SECOND = 3.0e9
ENCODE_BYTES_PER_SECOND = 0.5e9
SECONDS_PER_WRITE = 6e-6
SECONDS_PER_TASK = 1e-4
SECONDS_PER_LANE_BAND = 1e-5
DIGEST_BYTES_PER_SECOND = 12e9
SECONDS_PER_RUN = 1e-6
"""Orders of magnitude on one core of a small server; they only rank strategies."""

READ_BYTES_PER_SECOND = 0.5e9
"""Speed of a disk or a network; it only decides if several targets should share a read."""

BAND_BYTES = 2 << 20
"""Decoded bytes at once: large enough that calls cost little, small enough to stay in cache."""

TASK_BAND_BYTES = 4 << 20
"""The same for a task of a conversion. It makes more calls for each band, so its workers wait for the interpreter's
lock more often than for memory."""

AT_ONCE_BYTES = 32 << 20
"""Size of all chunks together that a task decodes at once. With more, fresh memory and cache misses cost more than is
gained (measured)."""

AT_ONCE_GAIN = 1.25
"""How much faster a chunk is decoded at once than in a stream (measured)."""

CACHED_BYTES = 8 << 20
"""Bands above this leave the processor's cache between decoding and writing."""

TASK_OVERHEAD_BYTES = 2 << 20
"""Checksum scratch, file objects and small arrays that each task needs besides its buffers."""

CAST_SCRATCH_BYTES = 2 << 20
"""Casts run over slabs of 64 Ki elements, whose statistics need a few temporaries."""


RECORD_BYTES = 1 << 10
"""What a task keeps of each chunk that it reads or writes: its place, its box, its checksum (measured)."""


class Pace(Struct, frozen=True):
    """How elements pass through a task, and the memory that this takes.

    Attributes:
        band_bytes: decoded bytes that pass at once.
        at_once: whether source chunks are decoded at once instead of in a stream.
        task_bytes: memory of one task.
    """

    band_bytes: int
    at_once: bool
    task_bytes: int


class Fill(Struct, frozen=True):
    """One target of a read: its placement, how source and target are stored, and the strategy."""

    strategy: Strategy
    placement: Placement
    source: Side
    target: Side


def task_bytes(
    fills: Sequence[Fill], units: Grid, band_bytes: int, *, at_once: bool = False
) -> int:
    """Memory of a task that decodes a unit once and fills all of ``fills`` from it.

    It is the sum of: the decoded band, or, with ``at_once``, all chunks that are open side by side; the interleaved
    band, if chunks are interleaved; pieces as they are written and the target rows that they form, for one target at a
    time, or the encoded bytes of a chunk that is decoded at once, if they are more; the target chunks that are
    assembled, for all targets; the decoders, or later an encoder, if it is more.
    """
    source, open_chunks = fills[0].source, _open_chunks(fills, units)
    pieces = max((_piece_bytes(f, band_bytes) for f in fills if _in_pieces(f)), default=0)
    assembled = sum(_assembled_bytes(f, units) for f in fills if f.strategy == "block")
    rows = BAND_BYTES if any(f.strategy == "block" for f in fills) else 0
    passing = (band_bytes if _is_interleaved(fills) else 0) + 2 * pieces + rows
    if at_once:
        decoded, decoders = open_chunks * source.spec.chunk_bytes, source.stream_bytes
        passing = max(passing, source.encoded_bytes)
    else:
        decoded, decoders = band_bytes, open_chunks * source.stream_bytes
    coding = _coding_bytes(fills, decoders)
    return decoded + passing + assembled + coding + _fixed_bytes(fills, units)


def _coding_bytes(fills: Sequence[Fill], decoders: int) -> int:
    """Decoders end before chunks are encoded and written; what a target keeps longer is there with both."""
    encoded = [f.target for f in fills if not _in_pieces(f)]
    ending = max((t.stream_bytes for t in encoded if t.ends_with_chunk), default=0)
    kept = max((t.stream_bytes for t in encoded if not t.ends_with_chunk), default=0)
    return max(decoders, ending) + kept


def gains_at_once(fills: Sequence[Fill], units: Grid) -> bool:
    """Whether decoding the chunks of a unit at once is faster, if there is memory for it.

    It is not for a chunk that several units share: a stream stops at the end of the part that its unit needs.
    """
    source = fills[0].source
    together = _open_chunks(fills, units) * source.spec.chunk_bytes
    chunks = fills[0].placement.source_grid(source.spec.storage)
    return source.encoded_bytes > 0 and together <= AT_ONCE_BYTES and units.common(chunks) == units


def _open_chunks(fills: Sequence[Fill], units: Grid) -> int:
    """Source chunks that are decoded side by side."""
    return _source_chunks(fills[0], units) if _is_interleaved(fills) else 1


def _is_interleaved(fills: Sequence[Fill]) -> bool:
    return any(fill.strategy == "weave" for fill in fills)


def _in_pieces(fill: Fill) -> bool:
    return fill.strategy in ("scatter", "weave")


def _piece_bytes(fill: Fill, band_bytes: int) -> int:
    return band_bytes * fill.target.spec.itemsize // fill.source.spec.itemsize


def _assembled_bytes(fill: Fill, units: Grid) -> int:
    return _target_chunks(fill, units) * fill.target.spec.chunk_bytes


def _fixed_bytes(fills: Sequence[Fill], units: Grid) -> int:
    cast = CAST_SCRATCH_BYTES if any(fill.placement.is_cast for fill in fills) else 0
    chunks = _source_chunks(fills[0], units) + sum(_target_chunks(f, units) for f in fills)
    return TASK_OVERHEAD_BYTES + cast + RECORD_BYTES * chunks


def _source_chunks(fill: Fill, units: Grid) -> int:
    return chunks_per_unit(units, fill.placement.source_grid(fill.source.spec.storage))


def _target_chunks(fill: Fill, units: Grid) -> int:
    return chunks_per_unit(units, fill.placement.target_grid(fill.target.spec.storage))


def price(fill: Fill, units: Grid, pace: Pace, *, is_decoded: bool = False) -> Price:
    """The cost of filling one target over ``units``. With ``is_decoded`` another target pays for decoding and for the
    source's digest."""
    strategy, placement, source, target = (
        fill.strategy,
        fill.placement,
        fill.source,
        fill.target,
    )
    source_grid = placement.source_grid(source.spec.storage)
    stored = _touched_bytes(source_grid, source)
    decoded = decoded_bytes(placement, source, units)
    moved = math.prod(placement.shape) * target.spec.itemsize
    target_grid = placement.target_grid(target.spec.storage)
    written = _written_bytes(target_grid, target, moved) * target.copies
    # Pieces are as wide as a source chunk, or as a row of a unit if chunks are interleaved.
    passing = units
    if strategy == "scatter" and units != source_grid:
        passing = units.refine(source_grid)
    if strategy in ("copy", "whole", "block"):
        writes = target_grid.count
    else:
        writes = _scattered_writes(placement, passing, target_grid, target)
    writes *= target.copies
    seconds = _seconds(fill, moved, writes, units.count)
    if strategy != "copy":
        # The source is read chunk by chunk, or row by row of a whole unit if chunks are interleaved.
        read = units if strategy == "weave" else source_grid
        if not is_decoded:
            seconds += 0.0 if source.raw else _decode_seconds(decoded, pace)
            seconds += _digest_seconds(read, source.spec.itemsize, moved)
        seconds += _digest_seconds(passing, target.spec.itemsize, moved)
    if strategy == "weave":
        seconds += (
            decoded / pace.band_bytes * chunks_per_unit(units, source_grid) * SECONDS_PER_LANE_BAND
        )
    if pace.band_bytes > CACHED_BYTES:
        seconds += moved / COPY_BYTES_PER_SECOND
    return Price(units.count, decoded, stored, written, writes, pace.task_bytes, seconds)


def _seconds(fill: Fill, moved: int, writes: int, tasks: int) -> float:
    """Time to copy, encode and write, without decoding and checksums."""
    if fill.strategy == "copy":
        return moved / COPY_BYTES_PER_SECOND / 2 + writes * SECONDS_PER_WRITE
    encode = 0.0 if fill.target.raw else moved / ENCODE_BYTES_PER_SECOND
    copy = moved / COPY_BYTES_PER_SECOND * (1.3 if fill.strategy == "block" else 1.0)
    return encode + copy + writes * SECONDS_PER_WRITE + tasks * SECONDS_PER_TASK


def _decode_seconds(nbytes: int, pace: Pace) -> float:
    return nbytes / DECODE_BYTES_PER_SECOND / (AT_ONCE_GAIN if pace.at_once else 1.0)


def chunks_per_unit(units: Grid, grid: Grid) -> int:
    """The most chunks of ``grid`` that one unit overlaps."""
    return math.prod(map(_parts_per_unit, units.cuts, grid.cuts))


def _digest_seconds(rows: Grid, itemsize: int, nbytes: int) -> float:
    """Time for checksums of ``nbytes`` in the boxes of ``rows``: one call per contiguous run."""
    run = itemsize
    for part, parts in zip(reversed(rows.largest), reversed(rows.parts), strict=True):
        run *= max(1, part)
        if parts > 1:
            break
    return nbytes / DIGEST_BYTES_PER_SECOND + nbytes / run * SECONDS_PER_RUN


def decoded_bytes(placement: Placement, source: Side, units: Grid) -> int:
    """Bytes decoded if each unit decodes every source chunk that it touches."""
    return _overlapped_bytes(units, placement.source_grid(source.spec.storage), source)


def _touched_bytes(grid: Grid, source: Side) -> int:
    """Stored bytes of the source chunks that the placement touches, each counted once."""
    return _overlapped_bytes(Grid.whole(grid.shape), grid, source)


def _overlapped_bytes(units: Grid, grid: Grid, source: Side) -> int:
    """Sum over units of the stored bytes of the source chunks that each touches.

    The chunks of a unit form a box of chunks, so the sum is a product of sums per dimension.
    """
    if 0 in grid.shape:
        return 0
    total = source.spec.itemsize
    padded = source.spec.chunk_shape
    for dim, (unit_cuts, cuts) in enumerate(zip(units.cuts, grid.cuts, strict=True)):
        if padded is None:
            total *= _overlapped_elements(unit_cuts, cuts)
        else:
            total *= _overlaps(unit_cuts, cuts) * padded[dim]
    return total


@lru_cache(maxsize=4096)
def _overlaps(units: Cuts, cuts: Cuts) -> int:
    """How many pairs of a unit and a part of ``cuts`` overlap."""
    return sum(bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units))


@lru_cache(maxsize=4096)
def _overlapped_elements(units: Cuts, cuts: Cuts) -> int:
    """The sizes of the parts of these pairs, summed up."""
    return sum(
        cuts[bisect_left(cuts, b)] - cuts[bisect_right(cuts, a) - 1] for a, b in pairwise(units)
    )


def _written_bytes(grid: Grid, target: Side, moved: int) -> int:
    if target.spec.chunk_shape is None:
        return moved
    return grid.count * (target.spec.chunk_bytes + 4)


def _scattered_writes(placement: Placement, units: Grid, target_grid: Grid, target: Side) -> int:
    """Number of contiguous writes that fill the target when pieces cut by both grids are written one by one.

    Within a target chunk, a run covers the trailing dimensions that no unit cuts; it ends in the innermost dimension
    that is cut.
    """
    refined = units.refine(target_grid)
    target_dims = inverse(placement.axis_order)
    run = 1
    for dim in placement.axis_order[::-1]:
        run *= max(1, refined.largest[dim])
        if refined.parts[dim] != target_grid.parts[dim] or _is_padded(target, target_dims[dim]):
            break
    return max(1, math.prod(placement.shape) // run)


def _is_padded(target: Side, dim: int) -> bool:
    chunk = target.spec.chunk_shape
    return chunk is not None and target.spec.shape[dim] % chunk[dim] != 0


@lru_cache(maxsize=4096)
def _parts_per_unit(units: Cuts, cuts: Cuts) -> int:
    """The most parts of ``cuts`` that one unit overlaps."""
    return max(
        (bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units)), default=0
    )
