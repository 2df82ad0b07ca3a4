"""Checks that the pieces of a tensor tile it, and tells whether they share its chunks."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import PlanError
from reshard.geometry.box import Box
from reshard.geometry.tiling import tiling_fault
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece


def check_tiled(spec: TensorSpec, pieces: Sequence[Piece]) -> None:
    """Raises PlanError, naming pieces or what is left, unless they fill each element of a target tensor exactly once."""
    full = Box.full(spec.shape)
    if len(pieces) == 1 and pieces[0].target_view is None and pieces[0].target_box == full:
        return  # the common case, of which there may be 100,000
    boxes = [(box, piece) for piece in pieces for box in _boxes(piece)]
    outside = next((one for one in boxes if not full.contains(one[0])), None)
    if outside is not None:
        raise _reaches_outside(spec, *outside)
    fault = tiling_fault(full, [box for box, _ in boxes])
    if isinstance(fault, Box):
        raise _leaves_a_hole(spec, boxes)
    if fault is not None:
        raise _overlap(spec, boxes, *fault)


_Filled = Sequence[tuple[Box, Piece]]
"""Boxes of a target, each with the piece that fills it."""


def _reaches_outside(spec: TensorSpec, box: Box, piece: Piece) -> PlanError:
    return PlanError(
        f"{spec.name!r} of shape {list(spec.shape)} would be filled from {piece.source!r} in {box}, which reaches outside of "
        "it: give the target that shape"
    )


def _leaves_a_hole(spec: TensorSpec, boxes: _Filled) -> PlanError:
    some = ", ".join(f"{piece.source!r} in {box}" for box, piece in boxes[:3])
    return PlanError(
        f"{spec.name!r} of shape {list(spec.shape)} would be filled only from {some}{', …' if len(boxes) > 3 else ''}; a tensor "
        "is filled as a whole: give a piece for the rest, or give the target that shape"
    )


def _overlap(spec: TensorSpec, boxes: _Filled, first: Box, second: Box) -> PlanError:
    a = next(piece for box, piece in boxes if box == first)
    b = next(
        piece for box, piece in reversed(boxes) if box == second
    )  # the last: both boxes may be equal
    return PlanError(
        f"{spec.name!r} would be filled from {a.source!r} in {first} and from {b.source!r} in {second}; every element is "
        "filled by one piece: give one of them another place or another name"
    )


def spans_chunks(spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
    """Whether a chunk of the target has elements of several pieces, or of a piece that is not one box of the target."""
    every = [_boxes(piece) for piece in pieces]
    return not all(len(boxes) == 1 and _is_aligned(spec, boxes[0]) for boxes in every)


def _boxes(piece: Piece) -> list[Box]:
    """The boxes of the target that a piece fills."""
    return [box for box, _ in piece.target_boxes(Box.full(piece.shape))]


def _is_aligned(spec: TensorSpec, box: Box) -> bool:
    ends = zip(spec.storage.cuts, box.start, box.stop, strict=True)
    return all(start in cuts and stop in cuts for cuts, start, stop in ends)
