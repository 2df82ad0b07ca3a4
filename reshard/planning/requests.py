"""Formulas for the requests of a conversion from or to buckets; nothing is looked up here.

The requests of a tensor that is read are those of its chunks, each as often as units of the plan touch it. The requests of a
target are those of its chunks, files, metadata and transaction. Both are within 25 % of the requests that are made, and 10 % of
their bytes (``tests/public/buckets/test_planned_requests.py``).

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
"""Requests of a bucket transaction besides its data: the lease, the mark of an unfinished target, records, and the checks that no
other run has the target. Tests count them."""

_RECORD_BYTES, _CHUNK_RECORD_BYTES = 110, 60
"""Bytes in the journal for each finished task, and for each chunk that it put (measured)."""

_ARRAY_BYTES, _ENTRY_BYTES, _SHARED_ENTRY_BYTES, _NAMES = 350, 450, 120, 6
"""Measured metadata bytes per tensor: in a file of its own, in the files of its tree, and beside shared files; and how often its
name occurs."""


class Writing(Struct, frozen=True):
    """The writing of a tensor, as a plan does it.

    Attributes:
        copied: true if chunks are copied as they are, encoded.
        raw: true if they are not compressed.
        chunks: the grid of chunks, each written in every place that it has.
        chunk_bytes, nbytes: of a chunk, and of all of them, before they are compressed.
        shared: true if they are parts of files that chunks share.
        slices: the grid of what a reader asks for: chunks, or slices of a shared file.
        copies: number of places of each chunk.
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
        """Number of chunks, counted in all places."""
        return self.chunks.count * self.copies

    def read_back(self, block_bytes: int) -> int:
        """Number of requests that read all of the tensor back."""
        largest = math.prod(self.slices.largest) * self.itemsize
        return -(-largest // block_bytes) * self.slices.count * self.copies


def writing_of(tensor: TensorPlan) -> Writing:
    """The facts of a target tensor; no other function takes them from a plan."""
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
    """The requests that put a file, whole if ``parts`` is 0.

    If the store does not prove uploads in parts, each is read back in so many ``ranges``.
    """
    if not parts:
        return Requests(put=1, sent_bytes=nbytes)
    sent = Requests(put=2, part=parts, sent_bytes=nbytes)
    return sent + Requests(get=ranges, received_bytes=nbytes) * int(store.reads_uploads_back)


def copied(store: RequestTraits) -> Requests:
    """The requests of a copy by the store itself."""
    return Requests(head=2, copy=1, put=store.puts_of_copy)


def carried(nbytes: int, *, from_bucket: bool) -> Requests:
    """The requests of a file that is no tensor; it is read again for the target's record."""
    gets = 1 + from_bucket
    return Requests(head=1, get=gets, put=1, received_bytes=gets * nbytes, sent_bytes=nbytes)


def metadata(
    tensors: int, name_bytes: int, trees: int, *, own_files: bool
) -> tuple[Requests, Requests]:
    """The requests for metadata before the chunks, and after them.

    Args:
        name_bytes: of the names of all tensors.
        own_files: true if chunks are files of their own. Then each tensor has a file that describes them, and each tree a few.
    """
    names = _NAMES * name_bytes
    if not own_files:
        return NONE, Requests(put=2, sent_bytes=300 + _SHARED_ENTRY_BYTES * tensors + names)
    sent = 900 * trees + _ENTRY_BYTES * tensors + names
    after = Requests(list=2 * trees, head=trees, put=3 + 4 * trees, sent_bytes=sent)
    return Requests(put=tensors, sent_bytes=_ARRAY_BYTES * tensors), after


def of_transaction(store: RequestTraits, objects: int, chunks: int, tasks: int) -> Requests:
    """The requests that hold and publish a target, with the journal's records of so many chunks and tasks."""
    one_by_one = Requests(delete=2 if store.deleted_at_once == 1 else 0)
    records = Requests(sent_bytes=_RECORD_BYTES * tasks + _CHUNK_RECORD_BYTES * chunks)
    return _OF_TRANSACTION + one_by_one + records + Requests(list=pages_of(objects) - 1)


def deleted(store: RequestTraits, objects: int) -> Requests:
    """The requests that delete so many objects."""
    return Requests(delete=-(-objects // store.deleted_at_once))


def requests_of_read_back(written: Requests, metadata: Requests, chunk_ranges: int) -> Requests:
    """The requests that open the finished target and read all of it.

    Args:
        written, metadata: the requests that wrote its data, and its other files.
        chunk_ranges: number of requests that read its tensors.
    """
    return Requests(
        list=pages_of(written.put + metadata.put),
        get=metadata.put + chunk_ranges,
        received_bytes=metadata.sent_bytes + written.sent_bytes,
    )


_GAP_SHARE = 8
"""A stream reads over gaps of at most a block divided by this number."""


class Ranges(Struct, frozen=True):
    """Sizes of the requests for chunks: ``block_bytes`` in a request, ``ahead_bytes`` requested before they are needed."""

    block_bytes: int
    ahead_bytes: int

    def count(self, nbytes: float) -> int:
        """Number of requests for so many consecutive bytes."""
        return math.ceil(nbytes / self.block_bytes)


class ChunkReads(Struct, frozen=True):
    """The chunks of a source tensor.

    Attributes:
        count: number of chunks of the grid.
        once: the requests that read each chunk once; fewer if some are missing, or are in an index.
        share: fraction of the chunks that are in files, at most 1.
        mean_bytes: of a chunk as it is stored.
    """

    count: int
    once: Requests = NONE
    share: float = 1.0
    mean_bytes: float = 0.0


class ReadPattern(Struct, frozen=True):
    """The pattern in which the tasks of a plan read a tensor.

    Attributes:
        units, chunks: the boxes that tasks fill and those that are stored, in the same coordinates.
        chunk_shape: of the largest chunk as it is stored.
        band_bytes: bytes that are decoded at once.
        in_parts: true if a task reads only those bands of a chunk that it needs, not all of the chunk.
        checks_behind: true if a chunk of several blocks needs one more request for the checksum behind it.
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

    ``seekable``: true if a part of a chunk can be read alone; ``checksum``: true if a checksum follows it.
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
    """The requests of all tasks for a tensor: each unit reads every chunk that it touches, or the bands of it that it touches.

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
    """The number of pairs of a unit and a chunk that overlap along a dimension."""
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
    """The parts of chunks that the units want.

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
        """Number of requests, and of bytes.

        A stream that continues requests blocks ahead of its reader. If they reach the next run, a pair is one
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
