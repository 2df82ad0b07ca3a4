"""Formulas for the requests of a conversion from or to buckets; nothing is looked up here.

A tensor that is read takes what its chunks take, as often as the units of the plan touch them. A target takes what its chunks
and files take, its metadata by number and size, and what its transaction does. Both are within 25 % of the requests that are
made, and 10 % of their bytes (``tests/public/buckets/test_planned_requests.py``).

An example of ``reads``: a tensor of [4096, 4096] float32 is stored in 4 chunks of [1024, 4096], each compressed to 12 MiB, and is
wanted in 4 units of [4096, 1024]. A request reads 8 MiB, so that a chunk takes 2, and reading each chunk once takes 8 gets and
48 MiB. Along the rows, 1 unit overlaps 4 chunks: 4 pairs. Along the columns, 4 units overlap 1 chunk: 4 pairs. That makes 4 × 4 =
16 pairs of a unit and a chunk. Each of the 4 chunks is read 16 / 4 = 4 times, since all of it must be decompressed: 32 gets
and 192 MiB.
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
from reshard.planning.tensor_plan import Fill, TensorPlan
from reshard.storage.requests import NONE, Requests, RequestTraits, pages_of

_OF_TRANSACTION = Requests(
    list=6, head=7, get=1, put=6, delete=4, received_bytes=300, sent_bytes=1300
)
"""Of a new target in a bucket beside its files: the lease, the mark of what is unfinished, records, and the looks by which a run
is sure that nobody else has the target. Tests count them."""

_RECORD_BYTES, _CHUNK_RECORD_BYTES = 110, 60
"""What the journal has of a task that is done, and of each chunk that it put (measured)."""

_ARRAY_BYTES, _ENTRY_BYTES, _SHARED_ENTRY_BYTES, _NAMES = 350, 450, 120, 6
"""What a target says of a tensor in a file of its own, in those of its tree, and beside shared files; a name is there so often
(measured)."""


class Writing(Struct, frozen=True):
    """How a plan writes a tensor.

    Attributes:
        copied: whether chunks are copied as they are, encoded.
        raw: whether they are not compressed.
        chunks: that are written, each in every place that it has.
        chunk_bytes, nbytes: of a chunk, and of all of them, before they are compressed.
        shared: whether they are parts of files that chunks share.
        slices: the grid of what a reader asks for: chunks, or slices of a shared file.
        copies: places of each.
        itemsize: bytes of an element.
    """

    source: str
    target: str
    copied: bool
    raw: bool
    chunks: Grid
    chunk_bytes: int
    nbytes: int
    shared: bool
    slices: Grid
    copies: int
    itemsize: int

    @property
    def puts(self) -> int:
        """Chunks in all places."""
        return self.chunks.count * self.copies

    def read_back(self, block_bytes: int) -> int:
        """Requests that read all of it."""
        largest = math.prod(self.slices.largest) * self.itemsize
        return -(-largest // block_bytes) * self.slices.count * self.copies


def writing_of(tensor: TensorPlan) -> Writing:
    """The facts of a target tensor; only here they are taken from a plan."""
    side, spec = tensor.target, tensor.target.spec
    return Writing(
        source=tensor.piece.source,
        target=spec.name,
        copied=tensor.strategy == "copy",
        raw=side.codec.startswith("raw"),
        chunks=spec.storage,
        chunk_bytes=spec.chunk_bytes,
        nbytes=tensor.price.written_bytes,
        shared=side.in_order is not None,
        slices=spec.storage if side.in_order is None else side.in_order,
        copies=side.copies,
        itemsize=spec.itemsize,
    )


def uploaded(store: RequestTraits, nbytes: int, parts: int, ranges: int) -> Requests:
    """What putting a file takes, whole where ``parts`` is 0.

    A store that proves no uploads in parts has each read back in so many ``ranges``.
    """
    if not parts:
        return Requests(put=1, sent_bytes=nbytes)
    sent = Requests(put=2, part=parts, sent_bytes=nbytes)
    return sent + Requests(get=ranges, received_bytes=nbytes) * int(store.reads_uploads_back)


def copied(store: RequestTraits) -> Requests:
    """What a copy by the store itself takes."""
    return Requests(head=2, copy=1, put=store.puts_of_copy)


def carried(nbytes: int, *, from_bucket: bool) -> Requests:
    """What a file takes that is no tensor: it is read again for the record of the target."""
    gets = 1 + from_bucket
    return Requests(head=1, get=gets, put=1, received_bytes=gets * nbytes, sent_bytes=nbytes)


def metadata(
    tensors: int, name_bytes: int, trees: int, *, own_files: bool
) -> tuple[Requests, Requests]:
    """What metadata takes before the chunks, and after them.

    Args:
        name_bytes: of the names of all tensors.
        own_files: whether chunks are files of their own: then each tensor has a file that describes them, and each tree some.
    """
    names = _NAMES * name_bytes
    if not own_files:
        return NONE, Requests(put=2, sent_bytes=300 + _SHARED_ENTRY_BYTES * tensors + names)
    sent = 900 * trees + _ENTRY_BYTES * tensors + names
    after = Requests(list=2 * trees, head=trees, put=3 + 4 * trees, sent_bytes=sent)
    return Requests(put=tensors, sent_bytes=_ARRAY_BYTES * tensors), after


def of_transaction(store: RequestTraits, objects: int, chunks: int, tasks: int) -> Requests:
    """What holding and publishing a target takes, with the journal's records of so many chunks and tasks."""
    one_by_one = Requests(delete=2 if store.deleted_at_once == 1 else 0)
    records = Requests(sent_bytes=_RECORD_BYTES * tasks + _CHUNK_RECORD_BYTES * chunks)
    return _OF_TRANSACTION + one_by_one + records + Requests(list=pages_of(objects) - 1)


def deleted(store: RequestTraits, objects: int) -> Requests:
    """What deleting so many objects takes."""
    return Requests(delete=-(-objects // store.deleted_at_once))


def requests_of_read_back(written: Requests, metadata: Requests, chunk_ranges: int) -> Requests:
    """What opening the finished target and reading all of it takes.

    Args:
        written, metadata: what wrote its data, and its other files.
        chunk_ranges: requests that read its tensors.
    """
    return Requests(
        list=pages_of(written.put + metadata.put),
        get=metadata.put + chunk_ranges,
        received_bytes=metadata.sent_bytes + written.sent_bytes,
    )


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
