"""Piece: a box of a source tensor that becomes a box of a target tensor.

Select, rename, cast, stack, split, transpose, reshape and reshard are all pieces; the planner knows nothing else. The pieces
of a tensor tile it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from reshard.errors import PlanError
from reshard.geometry.grid import Box, Grid
from reshard.geometry.tiling import is_grid, tiling_fault
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec


class Piece(Struct, frozen=True, gc=False):
    """``target[target_box] = cast(source[source_box].transpose(axis_order), target_dtype)``, perhaps with arithmetic.

    If source or target has a view, its boxes are boxes of that view. A box "of the piece" has the axes of the source's view
    and is counted from the start of ``source_box``.

    Attributes:
        axis_order: dimension ``d`` of the target comes from dimension ``axis_order[d]`` of the source.
        saturate: true if the cast clips values to the largest finite one.
        checkpoint: number of the conversion's source that has the source tensor.
        source_view, target_view: the split of dimensions of source and target; None if none is split.
        fill: bytes of the element that fills the target's box if no source does; then ``source`` is "".
        arithmetic: applied to each element before the cast; None for none.
    """

    source: str
    source_box: Box
    target: str
    target_box: Box
    axis_order: tuple[int, ...]
    source_dtype: str
    target_dtype: str
    saturate: bool = False
    checkpoint: int = 0
    source_view: View | None = None
    target_view: View | None = None
    fill: bytes | None = None
    arithmetic: Arithmetic | None = None

    def __post_init__(self) -> None:
        rank, order = self.source_box.rank, self.axis_order
        is_in_order = order == _in_order(rank)
        if is_in_order and self.source_box is self.target_box:
            return  # the common case; there may be 300,000
        if not is_in_order and not _is_order(order, rank):
            raise PlanError(
                f"{self.target!r}: the axis order {order} is not a permutation of {rank} dimensions"
            )
        shape = self.source_box.shape
        moved = shape if is_in_order else tuple(map(shape.__getitem__, order))
        if moved != self.target_box.shape:
            raise PlanError(
                f"{self.target!r}: a box of shape {list(moved)} from {self.source!r} cannot fill "
                f"{self.target_box}, which has shape {list(self.target_box.shape)}"
            )

    @classmethod
    def whole(
        cls,
        source: TensorSpec,
        target: TensorSpec,
        *,
        saturate: bool = False,
        checkpoint: int = 0,
        arithmetic: Arithmetic | None = None,
    ) -> Piece:
        """All of one tensor becomes all of another, in the same axis order."""
        return cls(
            source.name,
            Box.full(source.shape),
            target.name,
            Box.full(target.shape),
            _in_order(len(source.shape)),
            source.dtype,
            target.dtype,
            saturate,
            checkpoint,
            arithmetic=arithmetic,
        )

    @classmethod
    def filled(cls, target: TensorSpec, box: Box, element: bytes) -> Piece:
        """A box of a target whose elements are all ``element``, its little-endian bytes."""
        full, order = Box.full(box.shape), _in_order(box.rank)
        return cls("", full, target.name, box, order, target.dtype, target.dtype, fill=element)

    @property
    def is_cast(self) -> bool:
        return self.source_dtype != self.target_dtype

    @property
    def is_computed(self) -> bool:
        """True if elements are computed, by arithmetic or a cast, and not moved as bits."""
        return self.arithmetic is not None or self.source_dtype != self.target_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the moved box, in the source's axis order."""
        return self.source_box.shape

    @property
    def is_viewed(self) -> bool:
        """True if a dimension of source or target is split."""
        return self.source_view is not None or self.target_view is not None

    def fills(self, spec: TensorSpec) -> bool:
        """True if it fills all of a target tensor."""
        box, view = self.target_box, self.target_view
        return box.stop == (spec.shape if view is None else view.shape) and not any(box.start)

    @property
    def key(self) -> tuple[int, str]:
        """The checkpoint and the name of its source."""
        return self.checkpoint, self.source

    def source_grid(self, storage: Grid) -> Grid:
        """The source's grid in the piece's coordinates."""
        viewed = storage if self.source_view is None else self.source_view.grid(storage)
        return viewed.clip(self.source_box)

    def target_grid(self, storage: Grid) -> Grid:
        """The target's grid in the same coordinates."""
        viewed = storage if self.target_view is None else self.target_view.grid(storage)
        return viewed.clip(self.target_box).permute(inverse(self.axis_order))

    def in_source(self, box: Box) -> Box:
        """A box of the piece as a box of the source's view."""
        return box.shift(self.source_box.start)

    def to_source(self, box: Box) -> Box:
        """The box of the source tensor around a box of the piece; without views both have the same elements."""
        moved = self.in_source(box)
        return moved if self.source_view is None else self.source_view.around(moved)

    def to_target(self, box: Box) -> Box:
        """The box of the target tensor around a box of the piece; without views both have the same elements."""
        moved = self.in_target(box)
        return moved if self.target_view is None else self.target_view.around(moved)

    def of_target(self, box: Box) -> Iterator[Box]:
        """The boxes of the piece that lie in a box of the target tensor."""
        parts = (box,) if self.target_view is None else (p for _, p in self.target_view.parts(box))
        for part in parts:
            found = part.intersect(self.target_box)
            if found is not None:
                yield found.relative_to(self.target_box.start).permute(inverse(self.axis_order))

    def in_target(self, box: Box) -> Box:
        """A box of the piece as a box of the target's view."""
        return box.permute(self.axis_order).shift(self.target_box.start)

    def source_boxes(self, box: Box) -> Iterator[Box]:
        """The boxes of the source tensor that a box of the piece consists of."""
        moved = self.in_source(box)
        if self.source_view is None:
            return iter((moved,))
        return (place for place, _ in self.source_view.places(moved))

    def target_boxes(self, box: Box) -> Iterator[tuple[Box, Box]]:
        """The boxes of the target tensor that a box of the piece consists of, each with the part of it, in the target's order.

        The part is counted from the start of the box.
        """
        moved = self.in_target(box)
        if self.target_view is None:
            return iter(((moved, Box.full(moved.shape)),))
        return (
            (place, part.relative_to(moved.start)) for place, part in self.target_view.places(moved)
        )

    def overlaps(self, box: Box) -> Iterator[Overlap]:
        """The overlaps of a box of the source tensor and the piece."""
        if self.source_view is None:
            found = box.intersect(self.source_box)
            if found is not None:
                inside = found.relative_to(box.start)
                yield Overlap(inside, inside.shape, Box.full(inside.shape), self._counted(found))
            return
        for place, part in self.source_view.parts(box):
            found = part.intersect(self.source_box)
            if found is not None:
                inside = place.relative_to(box.start)
                where = found.relative_to(part.start)
                yield Overlap(inside, part.shape, where, self._counted(found))

    def _counted(self, found: Box) -> Box:
        return found.relative_to(self.source_box.start)


class Overlap(Struct, frozen=True, gc=False):
    """The overlap of a source box and a piece, in both coordinate systems: ``elements[inside].reshape(shape)[where]``.

    Attributes:
        inside: a part of the box, counted from its start.
        shape: of that part in the source's view.
        where: the slice of that part that the piece takes.
        box: the same elements as a box of the piece.
    """

    inside: Box
    shape: tuple[int, ...]
    where: Box
    box: Box


@lru_cache(maxsize=64)
def _in_order(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


@lru_cache(maxsize=256)
def _is_order(order: tuple[int, ...], rank: int) -> bool:
    return tuple(sorted(order)) == _in_order(rank)


@lru_cache(maxsize=256)
def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes ``order``."""
    return tuple(order.index(d) for d in range(len(order)))


def check_tiled(spec: TensorSpec, pieces: Sequence[Piece]) -> None:
    """Raises PlanError unless the pieces fill each element of a target tensor exactly once; it names pieces or missing elements."""
    full = Box.full(spec.shape)
    if len(pieces) == 1 and pieces[0].fills(spec):
        return  # the common case; there may be 100,000
    if is_grid(full, [box for piece in pieces for box in _boxes(piece)]):
        return
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
    """True if a chunk of the target has elements of several pieces, or of a piece that is not one box of the target."""
    if len(pieces) == 1 and pieces[0].fills(spec):
        return False
    every = [_boxes(piece) for piece in pieces]
    return not all(len(boxes) == 1 and _is_aligned(spec, boxes[0]) for boxes in every)


def _boxes(piece: Piece) -> list[Box]:
    """The boxes of the target that a piece fills."""
    if piece.target_view is None:
        return [piece.target_box]
    return [box for box, _ in piece.target_boxes(Box.full(piece.shape))]


def _is_aligned(spec: TensorSpec, box: Box) -> bool:
    return spec.storage.are_cuts(box.start) and spec.storage.are_cuts(box.stop)


_HALF = 0.5


class Arithmetic(Struct, frozen=True, gc=False):
    """``element * multiply / divide + add`` in float32 (float64 for float64), rounded once to the target's dtype."""

    multiply: float = 1.0
    divide: float = 1.0
    add: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if it only moves exponents: factors that are powers of two. Subnormals may still lose bits."""
        factors = (abs(self.multiply), abs(self.divide))
        return not self.add and all(math.frexp(factor)[0] == _HALF for factor in factors)
