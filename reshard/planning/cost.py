"""The cost of a strategy in closed form: it grows with the number of cuts, never with pairs of chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.geometry.grid import Grid
from reshard.planning.piece import Piece, inverse
from reshard.planning.task_memory import Draft, Pace, Reading, decoded_bytes, touched_bytes
from reshard.planning.tensor_plan import Price, Side

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


def price(draft: Draft, reading: Reading, pace: Pace, *, is_decoded: bool = False) -> Price:
    """The cost of filling a draft's piece. With ``is_decoded``, another fill pays for decoding and for the source's digest."""
    strategy, piece, source, target = draft.strategy, draft.piece, draft.source, draft.target
    source_grid = piece.source_grid(source.spec.storage)
    decoded, stored = decoded_bytes(reading), touched_bytes(reading)
    moved = math.prod(piece.shape) * target.spec.itemsize
    target_grid = piece.target_grid(target.spec.storage)
    written = _written_bytes(target_grid, target, moved) * target.copies
    # Pieces are as wide as a source chunk, or as a row of a unit if chunks are interleaved.
    passing = draft.units
    if strategy == "scatter" and draft.units != source_grid:
        passing = draft.units.refine(source_grid)
    writes = _writes(draft, passing, target_grid, pace.band_bytes) * target.copies
    seconds = _seconds(draft, moved, writes, draft.units.count)
    if strategy != "copy":
        if not is_decoded:
            seconds += _decode_seconds(source, decoded, pace)
            # The source is read chunk by chunk, or row by row of a whole unit if chunks are interleaved.
            read = draft.units if strategy == "weave" else source_grid
            seconds += _digest_seconds(read, source.spec.itemsize, moved)
        seconds += _digest_seconds(passing, target.spec.itemsize, moved)
    if strategy == "scatter" and is_turned(piece):
        seconds += writes * SECONDS_PER_RUN
    if strategy == "weave":
        seconds += decoded / pace.band_bytes * reading.chunks * SECONDS_PER_CHUNK_BAND
    if pace.band_bytes > CACHED_BYTES:
        seconds += moved / COPY_BYTES_PER_SECOND
    return Price(draft.units.count, decoded, stored, written, writes, pace.task_bytes, seconds)


def _seconds(draft: Draft, moved: int, writes: int, tasks: int) -> float:
    """Time to copy, encode and write, without decoding and checksums."""
    if draft.strategy == "copy":
        return moved / COPY_BYTES_PER_SECOND / 2 + writes * SECONDS_PER_WRITE
    encode = 0.0 if draft.target.raw else moved / ENCODE_BYTES_PER_SECOND
    copy = moved / COPY_BYTES_PER_SECOND * (1.3 if draft.strategy == "block" else 1.0)
    return encode + copy + writes * SECONDS_PER_WRITE + tasks * SECONDS_PER_TASK


def _decode_seconds(source: Side, nbytes: int, pace: Pace) -> float:
    if source.raw:
        return 0.0
    return nbytes / DECODE_BYTES_PER_SECOND / (AT_ONCE_GAIN if pace.at_once else 1.0)


def _digest_seconds(rows: Grid, itemsize: int, nbytes: int) -> float:
    """Time for checksums of ``nbytes`` in the boxes of ``rows``: one call per contiguous run."""
    run = itemsize
    for part, parts in zip(reversed(rows.largest), reversed(rows.parts), strict=True):
        run *= max(1, part)
        if parts > 1:
            break
    return nbytes / DIGEST_BYTES_PER_SECOND + nbytes / run * SECONDS_PER_RUN


def _written_bytes(grid: Grid, target: Side, moved: int) -> int:
    if target.spec.chunk_shape is None:
        return moved
    return grid.count * (target.spec.chunk_bytes + 4)


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


def _writes(draft: Draft, passing: Grid, target_grid: Grid, band_bytes: int) -> int:
    """Number of writes that fill the target once, if pieces pass in the boxes of ``passing``."""
    if not draft.in_pieces:
        return target_grid.count
    piece, extents = draft.piece, draft.piece.shape
    if draft.strategy == "scatter":
        extents = _band_extents(piece, draft.source, band_bytes)
    return _scattered_writes(piece, passing, target_grid, draft.target, extents)


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
