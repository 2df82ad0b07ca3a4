"""The price of a strategy, in closed form: it grows with cuts, never with pairs of chunks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import pairwise

from reshard.layout.grid import Cuts, Grid
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

BAND_BYTES = 2 << 20
"""Decoded bytes at once: large enough that calls cost little, small enough to stay in cache."""

CACHED_BYTES = 8 << 20
"""Bands above this leave the processor's cache between decoding and writing."""

TASK_OVERHEAD_BYTES = 2 << 20
"""Checksum scratch, file objects and small arrays that each task needs besides its buffers."""

CAST_SCRATCH_BYTES = 2 << 20
"""Casts run over slabs of 64 Ki elements, whose statistics need a few temporaries."""


RECORD_BYTES = 1 << 10
"""What a task keeps of each chunk that it reads or writes: where it lies, its box, its checksum (measured)."""


def scatter_bytes(
    placement: Placement, source: Side, target: Side, units: Grid, band_bytes: int
) -> int:
    """Memory of one scatter or weave task: decoders, the decoded band (side by side where lanes are
    several), its pieces as written, and the rows of the target that they make together."""
    lanes = chunks_per_unit(units, placement.source_grid(source.spec.storage))
    rows = band_bytes * (1 if lanes == 1 else 2)
    pieces = band_bytes * target.spec.itemsize // source.spec.itemsize
    fixed = _fixed_bytes(placement, source, target, units)
    return lanes * source.stream_bytes + rows + 2 * pieces + fixed


def whole_bytes(
    placement: Placement, source: Side, target: Side, units: Grid, band_bytes: int
) -> int:
    """Memory of one whole task: the chunk, which is the band, its decoder and its encoder."""
    streams = source.stream_bytes + target.stream_bytes
    return band_bytes + streams + _fixed_bytes(placement, source, target, units)


def block_bytes(
    placement: Placement, source: Side, target: Side, units: Grid, band_bytes: int
) -> int:
    """Memory of one block task: the target chunks of the largest unit, a decoder and its band, rows
    of the target for its digest, and an encoder."""
    chunks = chunks_per_unit(units, placement.target_grid(target.spec.storage))
    assembled = chunks * stored_chunk_bytes(target)
    streams = source.stream_bytes + target.stream_bytes
    fixed = _fixed_bytes(placement, source, target, units)
    return assembled + streams + band_bytes + BAND_BYTES + fixed


def _fixed_bytes(placement: Placement, source: Side, target: Side, units: Grid) -> int:
    cast = CAST_SCRATCH_BYTES if placement.is_cast else 0
    chunks = chunks_per_unit(units, placement.source_grid(source.spec.storage))
    chunks += chunks_per_unit(units, placement.target_grid(target.spec.storage))
    return TASK_OVERHEAD_BYTES + cast + RECORD_BYTES * chunks


def price(
    strategy: Strategy,
    placement: Placement,
    source: Side,
    target: Side,
    units: Grid,
    task_bytes: int,
    band_bytes: int,
) -> Price:
    """What ``strategy`` over ``units`` costs."""
    source_grid = placement.source_grid(source.spec.storage)
    stored = _touched_bytes(source_grid, source)
    decoded = _overlapped_bytes(units, source_grid, source)
    moved = math.prod(placement.shape) * target.spec.itemsize
    target_grid = placement.target_grid(target.spec.storage)
    written = _written_bytes(target_grid, target, moved)
    if strategy in ("copy", "whole", "block"):
        writes = target_grid.count
    else:
        writes = _scattered_writes(placement, units, target_grid, target)
    seconds = _seconds(strategy, source, target, decoded, moved, writes, units.count)
    if strategy != "copy":
        # The source passes chunk by chunk, or row by row of a whole unit where lanes are woven.
        passing = units if strategy == "weave" else source_grid
        seconds += _digest_seconds(passing, source.spec.itemsize, moved)
        seconds += _digest_seconds(units, target.spec.itemsize, moved)
    if strategy == "weave":
        seconds += (
            decoded / band_bytes * chunks_per_unit(units, source_grid) * SECONDS_PER_LANE_BAND
        )
    if band_bytes > CACHED_BYTES:
        seconds += moved / COPY_BYTES_PER_SECOND
    return Price(units.count, decoded, stored, written, writes, task_bytes, seconds)


def _seconds(
    strategy: Strategy,
    source: Side,
    target: Side,
    decoded: int,
    moved: int,
    writes: int,
    tasks: int,
) -> float:
    if strategy == "copy":
        return moved / COPY_BYTES_PER_SECOND / 2 + writes * SECONDS_PER_WRITE
    decode = 0.0 if source.raw else decoded / DECODE_BYTES_PER_SECOND
    encode = 0.0 if target.raw else moved / ENCODE_BYTES_PER_SECOND
    copy = moved / COPY_BYTES_PER_SECOND * (1.3 if strategy == "block" else 1.0)
    return decode + encode + copy + writes * SECONDS_PER_WRITE + tasks * SECONDS_PER_TASK


def chunks_per_unit(units: Grid, grid: Grid) -> int:
    """The most chunks of ``grid`` that one unit overlaps."""
    return math.prod(map(_parts_per_unit, units.cuts, grid.cuts))


def _digest_seconds(rows: Grid, itemsize: int, nbytes: int) -> float:
    """Checksums of ``nbytes`` that pass in the boxes of ``rows``: one call a contiguous run."""
    run = itemsize
    for part, parts in zip(reversed(rows.largest), reversed(rows.parts), strict=True):
        run *= max(1, part)
        if parts > 1:
            break
    return nbytes / DIGEST_BYTES_PER_SECOND + nbytes / run * SECONDS_PER_RUN


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
    for dim, (unit_cuts, cuts) in enumerate(zip(units.cuts, grid.cuts, strict=True)):
        pairs = _overlaps(unit_cuts, cuts)
        total *= pairs * _chunk_extent(source, dim)
    return total


def _chunk_extent(source: Side, dim: int) -> int:
    """Stored elements of one chunk along ``dim``."""
    if source.spec.chunk_shape is not None:
        return source.spec.chunk_shape[dim]
    return max(b - a for a, b in pairwise(source.spec.storage.cuts[dim]))


@lru_cache(maxsize=4096)
def _overlaps(units: Cuts, cuts: Cuts) -> int:
    """How many pairs of a unit and a part of ``cuts`` overlap."""
    return sum(bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units))


def _written_bytes(grid: Grid, target: Side, moved: int) -> int:
    if target.spec.chunk_shape is None:
        return moved
    return grid.count * (stored_chunk_bytes(target) + 4)


def stored_chunk_bytes(side: Side) -> int:
    """Decoded bytes of the largest chunk, padding included."""
    shape = side.spec.chunk_shape or side.spec.storage.largest
    return math.prod(shape) * side.spec.itemsize


def _scattered_writes(placement: Placement, units: Grid, target_grid: Grid, target: Side) -> int:
    """Contiguous writes that fill the target when pieces cut by both grids are written one by one.

    Within a target chunk, trailing dimensions that no unit cuts run on; the innermost one that is
    cut ends the run.
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
