"""The cost of a strategy in closed form: it grows with the number of cuts, never with pairs of chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.geometry.grid import Grid
from reshard.planning.piece import Piece, inverse
from reshard.planning.task_memory import (
    Reading,
    TaskBuffers,
    UnpricedFill,
    decoded_bytes,
    touched_bytes,
)
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


def price(
    fill: UnpricedFill, reading: Reading, buffers: TaskBuffers, *, is_decoded: bool = False
) -> Price:
    """The cost of filling a piece. With ``is_decoded``, another fill pays for decoding and for the source's digest."""
    strategy, piece, source, target = fill.strategy, fill.piece, fill.source, fill.target
    source_grid = piece.source_grid(source.spec.storage)
    decoded, stored = decoded_bytes(reading), touched_bytes(reading)
    moved = math.prod(piece.shape) * target.spec.itemsize
    target_grid = piece.target_grid(target.spec.storage)
    written = _written_bytes(target_grid, target, moved) * target.copies
    # Pieces are as wide as a source chunk, or as a row of a unit if chunks are interleaved.
    passing = fill.units
    if strategy == "scatter" and fill.units != source_grid:
        passing = fill.units.refine(source_grid)
    writes = _writes(fill, passing, target_grid, buffers.band_bytes) * target.copies
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
    if buffers.band_bytes > CACHED_BYTES:
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
