"""GatheredChunks: presents a tensor that is stored in loose pieces as a grid of chunks.

DCP's shards and TensorFlow's slices are boxes that need not form a grid. Each has its own file, offset and order of
axes. The rest of the project sees a grid: each chunk is a range of one piece, or is gathered from several
(``codecs/gather.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from reshard.formats.contents import Encoding, Extent, Pieces, RawPiece
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid, Index
from reshard.geometry.piece_grid import split_large, unsplit_grid, with_parts_joined
from reshard.geometry.row_major import span

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
        parts: a grid of which each chunk is within one part.
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
        return Extent(first.path, first.offset, nbytes, pieces=Pieces(box, self.itemsize, pieces))

    def _part(self, index: Index) -> Index:
        if self.grid is self.parts:
            return index
        return tuple(r.start for r in self.parts.overlapping(self.grid.box(index)))


def gathered_chunks(
    shape: tuple[int, ...], itemsize: int, pieces: Sequence[RawPiece]
) -> GatheredChunks:
    """The chunks of a tensor whose ``pieces`` tile it (``check_tiling`` says whether they do); empty ones are ignored."""
    filled = [piece for piece in pieces if piece.box.size]
    if len(filled) <= 1 and not any(map(is_reordered, filled)):
        grid = _whole(shape)
        return GatheredChunks(grid, PLAIN, itemsize, grid, _held(grid, filled))
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


@lru_cache(maxsize=256)
def _whole(shape: tuple[int, ...]) -> Grid:
    """One grid for all tensors of a shape: a model has many tensors, but few shapes."""
    return Grid.whole(shape)


def is_reordered(piece: RawPiece) -> bool:
    """Whether its elements are in another order than row-major."""
    shape = piece.box.shape
    long = [dim for dim in piece.order if shape[dim] > 1]
    return long != sorted(long)


def contiguous_from(piece: RawPiece, box: Box) -> int | None:
    """How many elements of the piece precede those of ``box``, if they follow one another there in row-major order."""
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
