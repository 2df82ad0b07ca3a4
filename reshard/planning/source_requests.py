"""Formulas for the requests that read the tensors of a source in a bucket; nothing is looked up here.

A tensor takes what its chunks take, as often as the units of the plan touch them. With ``target_requests.py`` this is within 25 %
of the requests that are made, and 10 % of their bytes (``tests/public/buckets/test_planned_requests.py``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct, structs

from reshard.geometry.bands import row_bytes
from reshard.geometry.grid import Cuts, Grid
from reshard.planning.multi_plan import Read
from reshard.planning.tensor_plan import Fill
from reshard.storage.requests import NONE, Requests

_GAP_SHARE = 8
"""A stream reads on over gaps of such a part of a block."""


class Ranges(Struct, frozen=True):
    """How the chunks of a tensor are read: ``block_bytes`` in a request, ``ahead_bytes`` requested before they are needed."""

    block_bytes: int
    ahead_bytes: int

    def count(self, nbytes: float) -> int:
        """Requests for so many bytes that follow one another."""
        return math.ceil(nbytes / self.block_bytes)


class ChunkReads(Struct, frozen=True):
    """The chunks of a source tensor.

    Attributes:
        count: of the grid.
        once: what reading each of them once takes; less where some are missing, or are in an index.
        share: of the chunks that are in files, at most 1.
        mean_bytes: of a chunk as it is stored.
    """

    count: int
    once: Requests = NONE
    share: float = 1.0
    mean_bytes: float = 0.0


class ReadPattern(Struct, frozen=True):
    """How the tasks of a plan read a tensor.

    Attributes:
        units, chunks: the boxes that tasks fill and those that are stored, in the same coordinates.
        chunk_shape: of the largest chunk as it is stored.
        band_bytes: that are decoded at once.
        in_parts: whether a task reads only those bands of a chunk that it needs, not all of the chunk.
        checks_behind: whether a checksum behind the chunk is requested beside its blocks, where there are several.
    """

    units: Grid
    chunks: Grid
    chunk_shape: tuple[int, ...]
    itemsize: int
    band_bytes: int
    in_parts: bool = False
    checks_behind: bool = False


def reading_of(
    read: Read, fill: Fill, number: int, *, seekable: bool, checksum: bool
) -> ReadPattern:
    """The facts of reading piece ``number`` of a read's first fill.

    ``seekable``: whether a part of a chunk can be read alone; ``checksum``: whether one follows it.
    """
    piece, spec = fill.pieces[number], fill.sources[number].spec
    if fill.is_joint:
        units, grid = piece.target_grid(read.units), piece.source_grid(spec.storage)
    else:
        view = piece.source_view
        units, grid = read.units, (view.grid(spec.storage) if view else spec.storage).clip(read.box)
    return ReadPattern(
        units,
        grid,
        spec.chunk_shape or spec.storage.largest,
        spec.itemsize,
        fill.band_bytes,
        in_parts=seekable and fill.strategy in ("scatter", "block"),
        checks_behind=fill.at_once and checksum,
    )


def reads(reading: ReadPattern, stored: ChunkReads, ranges: Ranges) -> Requests:
    """What all tasks read of a tensor: each unit reads every chunk that it touches, or the bands of it that it touches.

    Sums over units and chunks are products of sums over the pairs that overlap along each dimension.
    """
    if not stored.once.get:
        return NONE
    pairs = list(map(_pairs, reading.units.cuts, reading.chunks.cuts))
    count = math.prod(pairs)
    whole = [round(count / stored.count * value) for value in structs.astuple(stored.once)]
    made = Requests(*whole)
    if not reading.in_parts or count <= reading.chunks.count:
        is_long = reading.checks_behind and stored.mean_bytes > ranges.block_bytes
        return made + Requests(get=round(is_long * count * stored.share))
    runs = _runs(reading, pairs)
    gets, nbytes = runs.read(ranges)
    every = count * math.prod(reading.chunk_shape) * reading.itemsize
    least = made.get * min(1.0, runs.nbytes / every)
    return Requests(
        get=round(max(gets * stored.share, least)), received_bytes=round(nbytes * stored.share)
    )


@lru_cache(maxsize=4096)
def _pairs(units: Cuts, chunks: Cuts) -> int:
    """How many pairs of a unit and a chunk overlap along a dimension."""
    return sum(bisect_left(chunks, b) - bisect_right(chunks, a) + 1 for a, b in pairwise(units))


def _runs(reading: ReadPattern, pairs: Sequence[int]) -> _Runs:
    """The runs of bands that the units want. A band has whole rows of the dimensions behind ``dim``, along which it is cut.

    A run goes through the dimensions from ``first`` on, the last one before ``dim`` along which a unit ends within a chunk.
    """
    shape, parts = reading.units.shape, reading.chunks.parts
    rows = row_bytes(reading.chunk_shape, reading.itemsize)
    dim = next((d for d, row in enumerate(rows) if row <= reading.band_bytes), len(rows) - 1)
    first = next((d for d in range(dim, -1, -1) if pairs[d] > parts[d]), 0)
    behind = math.prod(pairs[dim + 1 :])
    return _Runs(
        pairs=math.prod(pairs),
        begun=math.prod(parts[: dim + 1]) * behind,
        count=math.prod(shape[:first]) * math.prod(pairs[first:]),
        nbytes=math.prod(shape[: dim + 1]) * behind * rows[dim],
        gaps=reading.chunk_shape[first] * pairs[first] / shape[first] - 1,
        band_bytes=max(rows[dim], reading.band_bytes // rows[dim] * rows[dim]),
    )


class _Runs(Struct, frozen=True):
    """What the units want of chunks.

    Attributes:
        pairs, begun: pairs of a unit and a chunk, and those in which the unit begins where the chunk does.
        count, nbytes: runs in all pairs, and their bytes.
        gaps: the bytes between two runs of a pair, by those of a run.
    """

    pairs: int
    begun: int
    count: int
    nbytes: int
    gaps: float
    band_bytes: int

    def read(self, ranges: Ranges) -> tuple[float, float]:
        """Requests and bytes.

        A stream that goes on where it was requests blocks ahead of its reader. Where they reach the next run, a pair is one
        stretch. The first band is a request of its own, unless a chunk begins with it.
        """
        run, each = self.nbytes / self.count, self.count / self.pairs
        band = min(run, self.band_bytes)
        if band >= ranges.block_bytes:
            return self.count * math.ceil(run / band) * ranges.count(band), self.nbytes
        ahead = ranges.ahead_bytes - ranges.block_bytes
        gap = run * self.gaps if each > 1 else 0.0
        if gap > ahead:
            stretches, alone, nbytes = self.count, 0.0, run + (ahead if run > band else 0)
        else:
            goes_on = run > band or gap <= ranges.block_bytes / _GAP_SHARE
            stretches = self.pairs if goes_on else min(self.begun, self.pairs)
            alone = (self.pairs - stretches) * each
            nbytes = run * each + gap * (each - 1)
        begun = min(self.begun, stretches)
        behind = stretches - begun
        gets = begun * ranges.count(nbytes) + behind * (1 + ranges.count(nbytes - band)) + alone
        return gets, stretches * nbytes + alone * run
