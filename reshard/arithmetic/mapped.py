"""mapped_reader: the tensors that a map makes of an open checkpoint, as an open checkpoint: computed of pieces as they are read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from reshard.engine.cast import cast_into
from reshard.formats.base import Reader
from reshard.formats.computed import ComputedTensor, Operand, computed_reader, computed_tensor
from reshard.formats.formula import Formula
from reshard.geometry.grid import Box, Grid
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.mapped import MappedTensor
from reshard.maps.mapped_checkpoint import leaves_of, mapped_tensors
from reshard.planning.piece import Piece


def mapped_reader(reader: Reader, given: GivenMap) -> Reader:
    """The checkpoint that a map makes of another; PlanError where the map does not fit its tensors."""
    mapping, _ = mapped_tensors(reader, given, Changes())
    made = [_computed(reader, tensor) for tensor in mapping.tensors]
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


def _computed(reader: Reader, tensor: MappedTensor) -> ComputedTensor:
    operands = [
        Operand.of(reader, piece.source, is_held=_is_turned(piece))
        for piece in tensor.pieces
        if piece.fill is None
    ]
    spec = replace(tensor.spec, storage=_grid(reader, tensor))
    made = computed_tensor(spec, PiecesFormula(tensor.pieces), operands)
    is_key = any(operand.stored.is_key for operand in operands)
    return replace(made, stored=replace(made.stored, is_key=is_key))


def _is_turned(piece: Piece) -> bool:
    """True if the elements of a piece come in another order than they are stored."""
    in_order = tuple(range(len(piece.axis_order)))
    return piece.is_viewed or piece.axis_order != in_order


def _grid(reader: Reader, tensor: MappedTensor) -> Grid:
    """The cuts of a target that part no stored chunk of its pieces; none where a dimension of it is split."""
    shape, pieces = tensor.spec.shape, [p for p in tensor.pieces if p.fill is None]
    if any(piece.target_view is not None for piece in pieces):
        return Grid.whole(shape)
    grids = [
        piece.source_grid(reader.tensors[piece.source].spec.storage).permute(piece.axis_order)
        for piece in pieces
    ]
    cuts = []
    for dim, size in enumerate(shape):
        ranges = [
            (p.target_box.start[dim], p.target_box.stop[dim], grid.cuts[dim])
            for p, grid in zip(pieces, grids, strict=True)
        ]
        found = sorted({0, size}.union(*({a + cut for cut in inner} for a, _, inner in ranges)))
        parted = {
            cut
            for start, stop, inner in set(ranges)
            for cut in found[bisect_right(found, start) : bisect_left(found, stop)]
            if cut - start not in inner
        }
        cuts.append(tuple(cut for cut in found if cut not in parted))
    return Grid(shape, tuple(cuts))


class PiecesFormula(Formula, frozen=True):
    """A tensor put together from pieces of others; each has an operand, but for those that are filled with one element."""

    pieces: tuple[Piece, ...]

    @property
    def is_opaque(self) -> bool:
        return not any(piece.is_computed for piece in self.pieces)

    def boxes(self, box: Box) -> Sequence[Box]:
        return [_needed(piece, box) for piece in self.pieces if piece.fill is None]

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        arrays = iter(operands)
        for piece in self.pieces:
            if piece.fill is None:
                _move(piece, box, next(arrays), out)
            else:
                _fill(piece, piece.fill, box, out)


def _needed(piece: Piece, box: Box) -> Box:
    """The box of the source around what a box of the target takes of a piece; empty for nothing."""
    parts = [piece.to_source(part) for part in piece.of_target(box)] if box.size else []
    if parts:
        return Box.around(parts)
    view = piece.source_view
    nowhere = (0,) * (piece.source_box.rank if view is None else len(view.sizes))
    return Box(nowhere, nowhere)


def _places(piece: Piece, part: Box, box: Box) -> Iterator[tuple[Box, Box]]:
    """The places of a box of a piece in an array of ``box``, each with the part of it in the target's order."""
    return ((to.relative_to(box.start), at) for to, at in piece.target_boxes(part))


def _move(piece: Piece, box: Box, elements: Any, out: Any) -> None:
    """Writes the elements of a piece that are in a box of its target; ``elements`` are those of ``_needed``."""
    wanted = list(piece.of_target(box))
    for overlap in piece.overlaps(_needed(piece, box)) if wanted else ():
        block = elements[overlap.inside.slices].reshape(overlap.shape)[overlap.where.slices]
        for part in wanted:
            common = overlap.box.intersect(part)
            if common is None:
                continue
            moved = block[common.relative_to(overlap.box.start).slices].transpose(piece.axis_order)
            for place, at in _places(piece, common, box):
                to = out[place.slices]
                found = moved[at.slices].reshape(to.shape)
                if piece.is_computed:
                    cast_into(to, found, saturate=piece.saturate, arithmetic=piece.arithmetic)
                else:
                    to[...] = found


def _fill(piece: Piece, element: bytes, box: Box, out: Any) -> None:
    import numpy as np

    for part in piece.of_target(box):
        for place, _ in _places(piece, part, box):
            out[place.slices] = np.frombuffer(element, out.dtype)[0]
