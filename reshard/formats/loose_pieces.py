"""GatheredChunks: presents a tensor that is stored in loose pieces as a grid of chunks.

DCP's shards and TensorFlow's slices are boxes that need not form a grid. Each has its own file, offset and order of
axes. The rest of the project sees a grid: each chunk is a range of one piece, or is gathered from several
(``codecs/source.py``).

The boxes of the pieces tile the tensor but need not form a grid. Cuts that split no box are kept::

       0       4   6
    0  +-------+---+
       |       |   |
    2  +---+---+-+-+      the cut at row 2 splits no box;
       |   |     | |      each of those at columns 2, 4 and 5 splits one
    3  +---+-----+-+

Each box is within one part of this grid. Small parts are joined, since each costs a call. Large parts are cut along the
axis that is stored slowest, so that workers share them; such a cut divides a box into two contiguous ranges.

The slices of a tensor that lie contiguously in shared files, and the places of its chunks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import TargetTensor
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import Encoding, Extent, GatheredChunk, RawPiece, StoredTensor
from reshard.formats.file_map import Place
from reshard.geometry.grid import Box, Cuts, Grid, Index
from reshard.geometry.row_major import span


class SlicePlaces(Struct, frozen=True):
    """The slices of a tensor of a target, row-major each.

    Attributes:
        starts: per slice, the place of its first byte in every file that has it.
    """

    tensor: TargetTensor
    slices: Grid
    starts: Mapping[Index, tuple[Place, ...]]

    def places(self, index: Index) -> tuple[Place, ...]:
        """The places of a chunk: the storage grid cuts each slice into contiguous parts."""
        spec = self.tensor.spec
        start = spec.storage.box(index).start
        found = tuple(
            bisect_right(c, at) - 1 for c, at in zip(self.slices.cuts, start, strict=True)
        )
        box = self.slices.box(found)
        offset = 0
        for at, first, size in zip(start, box.start, box.shape, strict=True):
            offset = offset * size + at - first
        offset *= spec.itemsize
        return tuple(Place(p.file, p.start + offset) for p in self.starts[found])


CHUNK_BYTES = 16 << 20
"""Most bytes of a chunk in a shared file. It is a unit of work only: readers of the file do not see it.

Where files are uploaded in order, one chunk is read while those before it are sent."""


def in_shared_files(tensor: TargetTensor, source: StoredTensor, slices: Grid) -> TargetTensor:
    """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near."""
    spec, wanted = tensor.spec, source.spec.storage
    near = wanted if wanted.shape == slices.shape else None
    storage = contiguous_grid(slices, spec.itemsize, CHUNK_BYTES, near)
    return replace(tensor, spec=replace(spec, storage=storage), encoding=Encoding(), packed=slices)


def refuse_dtype(tensor: TargetTensor, known: Collection[str], whose: str) -> None:
    """Raises PlanError unless the dtype is in ``known``; ``whose`` names the format, as in "which … do not have"."""
    spec = tensor.spec
    if spec.dtype not in known:
        raise PlanError(
            f"{spec.name!r} is {spec.dtype}, which {whose} do not have; drop it, or cast it to one of {', '.join(known)}"
        )


def kept_shards(tensor: TargetTensor, source: StoredTensor) -> Grid:
    """The slices of the shards of a tensor, whole for one without elements, or with shards that are no grid.

    Where nothing else tells the shards, they are those of the source.
    """
    shards, spec = tensor.shards, tensor.spec
    if not isinstance(shards, Grid) or not spec.nbytes:
        return Grid.whole(spec.shape)
    is_given = spec.layout is not None or tensor.partition is not None
    if is_given or source.partition is None or source.spec.shape != spec.shape:
        return shards
    kept = replace(tensor, partition=source.partition, slices=None).shards
    return kept if isinstance(kept, Grid) else shards  # a partition has a grid


JOIN_BYTES = 1 << 20
"""Smaller chunks are joined if a tensor has many: reading one costs as much as reading 100 KiB more."""

MANY_CHUNKS = 16
"""Fewer are left as they are stored, which ``inspect`` shows."""

SPLIT_BYTES = 32 << 20
"""Larger chunks that are gathered are cut, so that workers share them."""

AT_ONCE_BYTES = 2 << 20
"""The same for chunks that are gathered at once, in memory."""

PLAIN = Encoding()
IN_RANGES = Encoding(gathered="in ranges")
AT_ONCE = Encoding(gathered="at once")


class GatheredChunks(Struct, frozen=True):
    """The chunks of a tensor that is stored in loose pieces.

    Attributes:
        grid: of the chunks.
        encoding: of each of them.
        parts: a grid; each chunk is within one part of it.
        pieces: those within each part.
    """

    grid: Grid
    encoding: Encoding
    itemsize: int
    parts: Grid
    pieces: Mapping[Index, tuple[RawPiece, ...]]

    def locate(self, index: Index) -> Extent | None:
        """The location of the chunk at ``index``; None if the tensor has no such chunk."""
        pieces = self.pieces.get(self._part(index))
        if pieces is None:
            return None
        box = self.grid.box(index)
        if self.grid is not self.parts:
            pieces = tuple(piece for piece in pieces if piece.box.intersect(box))
        nbytes = box.size * self.itemsize
        if len(pieces) == 1:
            start = contiguous_from(pieces[0], box)
            if start is not None:
                piece = pieces[0]
                offset = piece.offset + start * self.itemsize
                return Extent(piece.path, offset, nbytes, version=piece.version)
        first = pieces[0]
        return Extent(
            first.path, first.offset, nbytes, pieces=GatheredChunk(box, self.itemsize, pieces)
        )

    def _part(self, index: Index) -> Index:
        if self.grid is self.parts:
            return index
        return tuple(r.start for r in self.parts.overlapping(self.grid.box(index)))


def gathered_chunks(
    shape: tuple[int, ...], itemsize: int, pieces: Sequence[RawPiece]
) -> GatheredChunks:
    """The chunks of a tensor whose ``pieces`` tile it (``check_tiling`` checks that); empty ones are ignored."""
    filled = [piece for piece in pieces if piece.box.size]
    if len(filled) <= 1 and not any(map(is_reordered, filled)):
        grid = Grid.whole(shape)
        held = {(0,) * len(shape): tuple(filled)} if filled else {}
        return GatheredChunks(grid, PLAIN, itemsize, grid, held)
    unsplit = unsplit_grid(shape, [piece.box for piece in filled])
    has_many = unsplit.count > MANY_CHUNKS
    parts = with_parts_joined(unsplit, JOIN_BYTES // itemsize) if has_many else unsplit
    held = _held(parts, filled)
    turned = next((piece.order for piece in filled if is_reordered(piece)), None)
    if turned is not None:
        grid = split_large(parts, AT_ONCE_BYTES // itemsize, turned)
        return GatheredChunks(grid, AT_ONCE, itemsize, parts, held)
    if len(held) == len(filled):
        return GatheredChunks(parts, PLAIN, itemsize, parts, held)
    grid = split_large(parts, SPLIT_BYTES // itemsize, range(len(shape)))
    return GatheredChunks(grid, IN_RANGES, itemsize, parts, held)


def is_reordered(piece: RawPiece) -> bool:
    """True if its elements do not follow one another in row-major order."""
    if piece.strides:
        return True
    shape = piece.box.shape
    long = [dim for dim in piece.order if shape[dim] > 1]
    return long != sorted(long)


def contiguous_from(piece: RawPiece, box: Box) -> int | None:
    """The number of elements of the piece before those of ``box``; None unless these are contiguous in row-major order."""
    if is_reordered(piece):
        return None
    first, count = span(box.relative_to(piece.box.start), piece.box.shape)
    return first if count == box.size else None


def _held(parts: Grid, pieces: Sequence[RawPiece]) -> dict[Index, tuple[RawPiece, ...]]:
    """The pieces in each part, in the order of their files: to open a file takes longer than to read a small piece."""
    held: dict[Index, list[RawPiece]] = {}
    for piece in pieces:
        index = tuple(r.start for r in parts.overlapping(piece.box))
        held.setdefault(index, []).append(piece)
    return {index: tuple(sorted(found, key=_place)) for index, found in held.items()}


def _place(piece: RawPiece) -> tuple[str, int]:
    return piece.path, piece.offset


MAX_SPLIT_PARTS = 1 << 16
"""Most parts into which large parts are cut: a file with holes may claim any size."""


def unsplit_grid(shape: tuple[int, ...], boxes: Sequence[Box]) -> Grid:
    """The finest grid that splits none of the boxes, which tile the tensor; empty ones are ignored.

    Boxes that form a grid are its parts.
    """
    filled = [box for box in boxes if box.size]
    if not filled:
        return Grid.whole(shape)
    return Grid(shape, tuple(_unsplit_cuts(n, filled, dim) for dim, n in enumerate(shape)))


def _unsplit_cuts(size: int, boxes: Sequence[Box], dim: int) -> Cuts:
    starts = sorted([box.start[dim] for box in boxes])
    stops = sorted([box.stop[dim] for box in boxes])
    # As many boxes end up to a cut as begin before it, if it splits none.
    inner = (c for c in sorted(set(starts)) if bisect_left(starts, c) == bisect_right(stops, c))
    return (*inner, size)


def with_parts_joined(grid: Grid, least: int) -> Grid:
    """The grid with parts of fewer than ``least`` elements joined to parts of about as many, the last dimension first."""
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    for dim in reversed(range(len(cuts))):
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        cuts[dim] = _joined_cuts(cuts[dim], least // max(1, others))
        largest[dim] = max((b - a for a, b in pairwise(cuts[dim])), default=0)
    return Grid(grid.shape, tuple(cuts))


def _joined_cuts(cuts: Cuts, rows: int) -> Cuts:
    """The cuts that are nearest to even ones, about ``rows`` apart."""
    if rows < 2 or len(cuts) < 3:
        return cuts
    at = (bisect_right(cuts, even) - 1 for even in _even_cuts(cuts[-1], rows))
    return tuple(dict.fromkeys(cuts[n] for n in at))


def split_large(grid: Grid, most: int, order: Sequence[int]) -> Grid:
    """The grid with parts of more than ``most`` elements cut, along the first axis of ``order`` that allows it.

    The parts before that axis are single rows, so that the overlap of a part and a row-major box (of axes in that order) is
    contiguous. There are at most a few times MAX_SPLIT_PARTS more of them.
    """
    most = max(most, math.prod(grid.shape) // MAX_SPLIT_PARTS)
    cuts = list(grid.cuts)
    largest = list(grid.largest)
    for dim in order:
        if math.prod(largest) <= most:
            break
        others = math.prod(largest[:dim] + largest[dim + 1 :])
        cuts[dim] = _split_cuts(cuts[dim], max(1, most // others))
        largest[dim] = max(b - a for a, b in pairwise(cuts[dim]))
    return grid if list(grid.cuts) == cuts else Grid(grid.shape, tuple(cuts))


def _split_cuts(cuts: Cuts, rows: int) -> Cuts:
    """The cuts, and even ones at most ``rows`` apart where they are further apart."""
    even = _even_cuts(cuts[-1], rows)
    split = [0]
    for a, b in pairwise(cuts):
        if b - a > rows:
            split += even[bisect_right(even, a) : bisect_left(even, b)]
        split.append(b)
    return tuple(split)


def _even_cuts(size: int, rows: int) -> Sequence[int]:
    """Cuts of a dimension into even parts of at most ``rows``.

    Their number is 1, 2 or 6 times a power of two, so that a mesh cuts the dimension at some of them.
    """
    parts = next(n for n in _counts() if -(-size // n) <= rows)
    return range(size + 1) if parts >= size else [size * n // parts for n in range(parts + 1)]


def _counts() -> Iterator[int]:
    yield from (1, 2)
    yield from (6 << n for n in count())
