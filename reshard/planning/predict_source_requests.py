"""How many requests the reads of a fill make where its source is in a bucket: arithmetic over where its chunks lie.

Streams read ahead in blocks (``storage.buckets.read_ahead``), so that a chunk takes a request for each block, and a part of a raw
chunk those that its bands touch. A move of many chunks is estimated from some of them, evenly spread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from reshard.formats.codecs import is_seekable
from reshard.formats.contents import Encoding, Extent
from reshard.geometry.bands import Band, bands, row_bytes
from reshard.geometry.box import Box
from reshard.geometry.grid import Index
from reshard.planning.tensor_plan import Fill
from reshard.storage.requests import Requests

SAMPLES = 256
"""Units of a fill, and source chunks of a unit, that are looked at."""

GAP_SHARE = 8
"""A stream reads on over gaps of such a part of a block."""

T = TypeVar("T")
Locate = Callable[[str, Index], Extent | None]


class Blocks(Struct, frozen=True):
    """How streams over a chunk read.

    Attributes:
        block_bytes: of one request.
        most: blocks that are requested ahead of the reader, the one that it reads included.
    """

    block_bytes: int
    most: int

    @classmethod
    def of(cls, encoding: Encoding, range_bytes: int) -> Blocks:
        """Those of the streams of an encoding in a store."""
        return cls(range_bytes, max(1, encoding.read_ahead_bytes // range_bytes))

    def whole(self, nbytes: int) -> Requests:
        """A range that is read from its begin to its end."""
        return Requests(get=-(-nbytes // self.block_bytes), received_bytes=nbytes)


def source_requests(fill: Fill, encoding: Encoding, locate: Locate, blocks: Blocks) -> Requests:
    """What all tasks of a fill read of their source."""
    spec, piece = fill.source.spec, fill.piece
    units, unit_scale = _spread(range(fill.units.count))
    total = WeightedSum()
    for number in units:
        unit = fill.units.box(fill.units.index_at(number))
        ranges = spec.storage.overlapping(piece.to_source(unit))
        places, scale = _spread(range(math.prod(map(len, ranges))))
        for place in places:
            index = _index_in(ranges, place)
            extent = locate(spec.name, index)
            if extent is None or extent.inline is not None:
                continue
            chunk = spec.storage.box(index)
            part = chunk.relative_to(piece.source_box.start).intersect(unit)
            local = (
                None
                if part is None
                else part.relative_to(chunk.relative_to(piece.source_box.start).start)
            )
            is_all = local is None or local.shape == chunk.shape or fill.strategy in ("copy", "whole", "weave")  # fmt: skip
            stored_shape = spec.stored_shape(index)
            if is_all:
                made = chunk_requests(extent, blocks)
                if fill.at_once and encoding.checksum and extent.length > blocks.block_bytes:
                    made += Requests(get=1)  # the checksum, behind what is read at once
            else:
                wanted = _wanted(fill, stored_shape, local or Box.full(stored_shape))
                made = _part_requests(extent, encoding, wanted, blocks)
            total.add(made, unit_scale * scale)
    return total.requests


def some_chunks(fill: Fill, locate: Locate) -> Iterator[tuple[Extent | None, float]]:
    """Where source chunks of a fill lie, and how many each of them stands for."""
    spec = fill.source.spec
    places, scale = _spread(range(spec.storage.count))
    return ((locate(spec.name, spec.storage.index_at(place)), scale) for place in places)


def chunk_requests(extent: Extent, blocks: Blocks) -> Requests:
    """What a chunk takes that is read whole."""
    if extent.pieces is None:
        return blocks.whole(extent.length)
    made = Requests()
    for piece in extent.pieces.pieces:
        made += blocks.whole(piece.box.size * extent.pieces.itemsize)
    return made


def _wanted(fill: Fill, shape: tuple[int, ...], part: Box) -> list[tuple[int, int]]:
    """The stretches of a chunk, in bytes, that are decoded for a part of it, band by band."""
    itemsize = fill.source.spec.itemsize
    rows = row_bytes(shape, itemsize) or [itemsize]
    found = []
    for band in bands(shape, len(shape), rows, fill.band_bytes, part):
        if _is_behind(band, part):
            break
        box = band.box(shape)
        if box.intersect(part) is not None:
            start = sum(at * row for at, row in zip(box.start, rows, strict=False))
            found.append((start, start + box.size * itemsize))
    return found


def _is_behind(band: Band, part: Box) -> bool:
    start = (*band.lead, band.start)
    return bool(part.stop) and start > tuple(stop - 1 for stop in part.stop[: len(start)])


def _part_requests(
    extent: Extent, encoding: Encoding, wanted: Sequence[tuple[int, int]], blocks: Blocks
) -> Requests:
    """What a chunk takes of which some stretches are wanted."""
    if not wanted:
        return Requests()
    if extent.pieces is not None:
        share = sum(end - start for start, end in wanted) / max(1, extent.length * extent.pieces.itemsize)  # fmt: skip
        found = [p.box.size * extent.pieces.itemsize for p in extent.pieces.pieces]
        touched = max(1, round(len(found) * min(1.0, share)))
        return blocks.whole(max(found)) * touched
    if not is_seekable(encoding):
        return blocks.whole(extent.length)
    return _read_ahead(wanted[-1][1], wanted, blocks)


def _read_ahead(nbytes: int, wanted: Sequence[tuple[int, int]], blocks: Blocks) -> Requests:
    """What a stream requests that goes through the first bytes of a chunk and reads some stretches of them."""
    requested: deque[tuple[int, int]] = deque()
    made, expected = Requests(), 0

    def request(start: int) -> None:
        nonlocal made
        end = min(start + blocks.block_bytes, nbytes)
        requested.append((start, end))
        made += Requests(get=1, received_bytes=end - start)

    for start, end in wanted:
        at = start
        while at < end:
            while requested and requested[0][1] <= at:
                requested.popleft()
            if not (requested and requested[0][0] <= at):
                is_near = 0 <= at - expected <= blocks.block_bytes // GAP_SHARE
                if not is_near or end - at >= blocks.block_bytes:
                    made += blocks.whole(end - at)
                    break
                requested.clear()
                request(at)
            while len(requested) < blocks.most and requested[-1][1] < nbytes:
                request(requested[-1][1])
            at = min(end, requested[0][1])
        expected = end
    return made


class WeightedSum:
    """Requests that are added up with weights."""

    def __init__(self) -> None:
        self._sums = [0.0] * len(Requests.__struct_fields__)

    def add(self, made: Requests, weight: float) -> None:
        found = structs.astuple(made)
        self._sums = [one + weight * more for one, more in zip(self._sums, found, strict=True)]

    @property
    def requests(self) -> Requests:
        return Requests(*map(round, self._sums))


def _spread(numbers: range) -> tuple[Iterator[int], float]:
    """Some of the numbers, evenly spread, and how many each of them stands for."""
    if len(numbers) <= SAMPLES:
        return iter(numbers), 1.0
    step = len(numbers) / SAMPLES
    return (numbers[int(step * i)] for i in range(SAMPLES)), step


def _index_in(ranges: Sequence[range], number: int) -> Index:
    """The index by its number among the products of ranges, row-major."""
    index = []
    for one in reversed(ranges):
        number, at = divmod(number, len(one))
        index.append(one[at])
    return tuple(reversed(index))
