"""Tensors that are put together from pieces of others as they are read: those that a map makes of an open checkpoint, and those of a view."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from reshard.engine.cast import cast_into
from reshard.formats.base import Reader
from reshard.formats.computed.formula import Formula
from reshard.formats.computed.tensors import (
    ComputedTensor,
    Operand,
    computed_reader,
    computed_tensor,
)
from reshard.geometry.grid import Box, Grid
from reshard.geometry.turned_copy import turned_copy
from reshard.layout.changes import Changes
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped_checkpoint import leaves_of, mapped_tensors
from reshard.planning.piece import Piece


def mapped_reader(reader: Reader, given: GivenMap) -> Reader:
    """The checkpoint that a map makes of another; PlanError where the map does not fit its tensors."""
    mapping, _ = mapped_tensors(reader, given, Changes())
    made = [tensor_of_pieces(reader, tensor.spec, tensor.pieces) for tensor in mapping.tensors]
    found = computed_reader(reader, {}, [leaf.name for leaf in reader.leaves], made)
    unproved = [
        f"{reader.uri}: the map says that {first!r} equals {second!r} (same_as), which is not compared here"
        for first, second in mapping.equal
    ]
    return replace(
        found,
        leaves=list(leaves_of(reader, mapping.tensors)),
        warnings=(*found.warnings, *unproved),
    )


def tensor_of_pieces(reader: Reader, spec: TensorSpec, pieces: Sequence[Piece]) -> ComputedTensor:
    """The tensor that pieces of a checkpoint's tensors make, which tile it."""
    sources = [piece for piece in pieces if piece.fill is None]
    operands = [Operand.of(reader, p.source, is_held=_is_turned(p)) for p in sources]
    spec = replace(spec, storage=_grid(reader, spec.shape, sources), chunk_shape=None)
    made = computed_tensor(spec, PiecesFormula(tuple(pieces)), operands)
    is_key = any(operand.stored.is_key for operand in operands)
    return replace(made, stored=replace(made.stored, is_key=is_key))


def _is_turned(piece: Piece) -> bool:
    """True if the elements of a piece come in another order than they are stored."""
    in_order = tuple(range(len(piece.axis_order)))
    return piece.is_viewed or piece.axis_order != in_order


def _grid(reader: Reader, shape: tuple[int, ...], pieces: Sequence[Piece]) -> Grid:
    """The cuts of a target that part no stored chunk of its pieces; none where a dimension of it is split."""
    if any(piece.target_view is not None for piece in pieces):
        return Grid.whole(shape)
    cuts = [{0, size} for size in shape]
    inner = set()
    for piece in pieces:
        stored = reader.tensors[piece.source].spec.storage
        grid = piece.source_grid(stored).permute(piece.axis_order)
        box = piece.target_box
        inner |= set(zip(range(len(shape)), box.start, box.stop, grid.cuts, strict=True))
    for dim, start, _, own in inner:
        cuts[dim] |= {start + cut for cut in own}
    rising = list(map(sorted, cuts))
    for dim, start, stop, own in inner:
        within = rising[dim][bisect_right(rising[dim], start) : bisect_left(rising[dim], stop)]
        cuts[dim] -= {cut for cut in within if cut - start not in own}
    return Grid(shape, tuple(tuple(sorted(each)) for each in cuts))


class PiecesFormula(Formula, frozen=True):
    """A tensor put together from pieces of others; each has an operand, but for those that are filled with one element."""

    pieces: tuple[Piece, ...]

    @property
    def is_opaque(self) -> bool:
        return not any(piece.is_computed for piece in self.pieces)

    @property
    def window_elements(self) -> int:
        """More of turned pieces: a narrow window takes a part of each line of the cache that it touches."""
        return 1 << 18 if any(map(_is_turned, self.pieces)) else super().window_elements

    def boxes(self, box: Box) -> Sequence[Box]:
        return [_needed(piece, box) for piece in self.pieces if piece.fill is None]

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        arrays = iter(operands)
        for piece in self.pieces:
            for part, block in _blocks(piece, box, arrays, out.dtype):
                for place, at in piece.target_boxes(part):
                    to = out[place.relative_to(box.start).slices]
                    found = block[at.slices].reshape(to.shape)
                    if piece.is_computed:
                        cast_into(to, found, saturate=piece.saturate, arithmetic=piece.arithmetic)
                    else:
                        turned_copy(to, found)


def _needed(piece: Piece, box: Box) -> Box:
    """The box of the source around what a box of the target takes of a piece; empty for nothing."""
    parts = [piece.to_source(part) for part in piece.of_target(box)] if box.size else []
    found = Box.around(parts or [piece.to_source(Box.full(piece.shape))])
    return found if parts else Box(found.start, found.start)


def _blocks(piece: Piece, box: Box, arrays: Iterator[Any], dtype: Any) -> Iterator[tuple[Box, Any]]:
    """The boxes of a piece in a box of its target, with their elements in the target's order; an array has those of ``_needed``."""
    import numpy as np

    wanted = list(piece.of_target(box))
    if piece.fill is not None:
        element = np.frombuffer(piece.fill, dtype)[0]
        yield from ((part, np.broadcast_to(element, part.shape)) for part in wanted)
        return
    elements = next(arrays)
    for overlap in piece.overlaps(_needed(piece, box)) if wanted else ():
        block = elements[overlap.inside.slices].reshape(overlap.shape)[overlap.where.slices]
        for part in wanted:
            common = overlap.box.intersect(part)
            if common is not None:
                taken = block[common.relative_to(overlap.box.start).slices]
                yield common, taken.transpose(piece.axis_order)
