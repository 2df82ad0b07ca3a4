"""The memory of a task: what it reads and fills, how elements pass through it, and the bytes that this takes."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from reshard.geometry.grid import Cuts, Grid
from reshard.geometry.view import View
from reshard.planning.piece import Piece
from reshard.planning.tensor_plan import Side, Strategy

BAND_BYTES = 2 << 20
"""Decoded bytes at once: large enough that calls cost little, small enough to stay in cache."""

SMALLEST_BAND_BYTES = 64 << 10
"""Below this, calls cost more than bytes."""

TASK_BAND_BYTES = 4 << 20
"""The same for a task of a conversion. It makes more calls for each band, so its workers wait for the interpreter's
lock more often than for memory."""

TURNED_BAND_BYTES = 16 << 20
"""The same where the target's rows lie across those of the source: a band has a few elements of each, and each few are a run."""

AT_ONCE_BYTES = 32 << 20
"""Size of all chunks together that a task decodes at once. With more, fresh memory and cache misses cost more than is
gained (measured)."""

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


class Reading(Struct, frozen=True):
    """What is decoded for one or several drafts.

    Attributes:
        grid: the source's chunks within what is read; in a view those that are boxes of it.
        units: boxes of what is read; a task decodes every chunk that its unit touches.
        view: of the source, where what is read is a box of one.
        start: of what is read, in the view.
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
        numbers: of the requests for which it stands, which differ in names and places only.
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
        """Whether it is written piece by piece, not chunk by chunk."""
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
    source, open_chunks = reading.source, _open_chunks(reading, drafts)
    # Lists, here and below: a plan prices each tensor some ten times, and generators take twice as long.
    pieces = max([_piece_bytes(f, band_bytes) for f in drafts if f.in_pieces], default=0)
    blocks = [
        len(f.numbers) * f.chunks * f.target.spec.chunk_bytes
        for f in drafts
        if f.strategy == "block"
    ]
    assembled, rows = sum(blocks), BAND_BYTES if blocks else 0
    passing = (band_bytes if _is_interleaved(drafts) else 0) + 2 * pieces + rows
    if at_once:
        decoded, decoders = open_chunks * source.spec.chunk_bytes, source.stream_bytes
        passing = max(passing, source.encoded_bytes)
    else:
        decoded, decoders = band_bytes, open_chunks * source.stream_bytes
    coding = _coding_bytes(drafts, decoders)
    return decoded + passing + assembled + coding + _fixed_bytes(reading, drafts)


def _coding_bytes(drafts: Sequence[Draft], decoders: int) -> int:
    """Decoders end before chunks are encoded and written; what a target keeps longer is there with both."""
    encoded = [f.target for f in drafts if not f.in_pieces]
    ending = max([t.stream_bytes for t in encoded if t.ends_with_chunk], default=0)
    kept = max([t.stream_bytes for t in encoded if not t.ends_with_chunk], default=0)
    return max(decoders, ending) + kept


def gains_at_once(reading: Reading, drafts: Sequence[Draft]) -> bool:
    """Whether decoding the chunks of a unit at once is faster, if there is memory for it.

    It is not for a chunk that several units share: a stream stops at the end of the part that its unit needs.
    """
    source, units = reading.source, reading.units
    together = _open_chunks(reading, drafts) * source.spec.chunk_bytes
    is_small = together <= AT_ONCE_BYTES
    return source.encoded_bytes > 0 and is_small and units.common(reading.grid) == units


def _open_chunks(reading: Reading, drafts: Sequence[Draft]) -> int:
    """Source chunks that are decoded side by side."""
    return reading.chunks if _is_interleaved(drafts) else 1


def _is_interleaved(drafts: Sequence[Draft]) -> bool:
    return any(draft.strategy == "weave" for draft in drafts)


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
    """Stored bytes of the source chunks that are touched, each counted once."""
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
    """How many pairs of a unit and a part of ``cuts`` overlap."""
    return sum(bisect_left(cuts, b) - bisect_right(cuts, a) + 1 for a, b in pairwise(units))


@lru_cache(maxsize=4096)
def _overlapped_elements(units: Cuts, cuts: Cuts) -> int:
    """The sizes of the parts of these pairs, summed up."""
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
