"""What a task is made of: the units of targets that it fills, and the chunks of a source that it reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from reshard.checksums.piece_crcs import PieceCrcs
from reshard.engine.output import TargetOutput
from reshard.engine.task import SourceChunk, SourceRead, Take, TargetChunk, Unit
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, StoredTensor
from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Index
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.multi_plan import FillAt
from reshard.planning.piece import Piece
from reshard.planning.tensor_plan import Fill

_CONSTANT = Encoding()


def unit_of(at: FillAt, fill: Fill, number: int, box: Box, output: TargetOutput) -> Unit:
    """A unit of a target: a box of the fill's piece, or of the target where the fill has several."""
    spec = fill.target.spec
    place = box if fill.is_joint else fill.piece.to_target(box)
    return Unit(
        at.target,
        at.tensor,
        number,
        fill.strategy,
        spec.name,
        spec.dtype,
        spec.shape,
        output.encodings[spec.name],
        fill.pieces,
        tuple(_target_chunks(spec, place, output)),
        place,
        spec.storage.clip(place),
    )


def changes_bytes(fill: Fill, piece: Piece) -> bool:
    """Whether the target's row-major bytes are not those of the source."""
    source, target = fill.sources[fill.pieces.index(piece)].spec, fill.target.spec
    is_whole = (piece.source_box, piece.target_box) == (
        Box.full(source.shape),
        Box.full(target.shape),
    )
    is_in_order = piece.axis_order == tuple(range(len(piece.axis_order)))
    return piece.is_computed or piece.is_viewed or not is_whole or not is_in_order


def source_read(
    piece: Piece,
    spec: TensorSpec,
    reader: Reader | None,
    box: Box,
    takes: tuple[Take, ...],
    wanted: Sequence[Box] = (),
) -> SourceRead:
    """The reading of a box of a tensor; without a reader the piece is filled with one element.

    ``wanted``: the boxes of the source's view that are taken, where it has one.
    """
    if reader is None:
        index = (0,) * box.rank
        chunks = (SourceChunk(index, None, box, box.shape),)
        element = piece.fill or b""
        return SourceRead("", spec.dtype, spec.shape, _CONSTANT, element, chunks, box, takes)
    stored = reader.tensors[piece.source]
    return SourceRead(
        piece.source,
        piece.source_dtype,
        spec.shape,
        stored.encoding,
        stored.fill,
        tuple(_source_chunks(spec, box, reader, piece.source_view, wanted)),
        box,
        takes,
        bool(stored.digest) and piece.source_box == Box.full(spec.shape),
        _crcs(stored, piece, box),
    )


def _crcs(stored: StoredTensor, piece: Piece, box: Box) -> PieceCrcs | None:
    """The checksums that prove what is read of a box."""
    crcs = stored.proving_crcs(is_viewed=piece.source_view is not None)
    return crcs if crcs is None or piece.source_view is not None else crcs.near(box)


def _source_chunks(
    spec: TensorSpec, around: Box, reader: Reader, view: View | None, wanted: Sequence[Box]
) -> Iterator[SourceChunk]:
    grid = spec.storage
    for index, box in _boxes(grid.overlapping(around), grid.cuts):
        if view is not None and not view.meets(box, wanted):
            continue  # it lies between the rows that are wanted
        extent = reader.locate(spec.name, index)
        yield SourceChunk(index, extent, box, spec.chunk_shape or box.shape)


def _target_chunks(spec: TensorSpec, place: Box, output: TargetOutput) -> Iterator[TargetChunk]:
    grid = spec.storage
    for index, box in _boxes(grid.overlapping(place), grid.cuts):
        places = output.places(spec.name, index)
        yield TargetChunk(index, places, box, spec.chunk_shape or box.shape)


def _boxes(ranges: Sequence[range], cuts: Sequence[Cuts]) -> Iterator[tuple[Index, Box]]:
    """The parts of a grid with these cuts whose indices are in ``ranges``, row-major.

    A large task has hundreds, so each cut is looked up once.
    """
    starts = [c[r.start : r.stop] for c, r in zip(cuts, ranges, strict=True)]
    stops = [c[r.start + 1 : r.stop + 1] for c, r in zip(cuts, ranges, strict=True)]
    indices = itertools.product(*ranges)
    corners = zip(itertools.product(*starts), itertools.product(*stops), strict=True)
    for index, (start, stop) in zip(indices, corners, strict=True):
        yield index, Box(start, stop)
