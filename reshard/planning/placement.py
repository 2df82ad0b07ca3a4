"""Placement: which box of a source tensor becomes which box of a target tensor.

Select, rename, cast, stack, split, transpose and reshard are all placements; the planner knows nothing else.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from reshard.errors import PlanError
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec


class Placement(Struct, frozen=True):
    """``target[target_box] = cast(source[source_box].transpose(axis_order), target_dtype)``.

    Attributes:
        axis_order: dimension ``d`` of the target comes from dimension ``axis_order[d]`` of the source.
        saturate: whether the cast clips values to the largest finite one.
    """

    source: str
    source_box: Box
    target: str
    target_box: Box
    axis_order: tuple[int, ...]
    source_dtype: str
    target_dtype: str
    saturate: bool = False

    def __post_init__(self) -> None:
        rank = self.source_box.rank
        in_order = _in_order(rank)
        if self.axis_order != in_order and tuple(sorted(self.axis_order)) != in_order:
            raise PlanError(
                f"{self.target!r}: the axis order {self.axis_order} is not a permutation of {rank} dimensions"
            )
        shape = self.source_box.shape
        moved = tuple(map(shape.__getitem__, self.axis_order))
        if moved != self.target_box.shape:
            raise PlanError(
                f"{self.target!r}: a box of shape {list(moved)} from {self.source!r} cannot fill "
                f"{self.target_box}, which has shape {list(self.target_box.shape)}"
            )

    @classmethod
    def whole(cls, source: TensorSpec, target: TensorSpec, *, saturate: bool = False) -> Placement:
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
        )

    @property
    def is_cast(self) -> bool:
        return self.source_dtype != self.target_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the moved box, in the source's axis order."""
        return self.source_box.shape

    def source_grid(self, storage: Grid) -> Grid:
        """The source's grid in the placement's coordinates: source axis order, from the box's start."""
        return storage.clip(self.source_box)

    def target_grid(self, storage: Grid) -> Grid:
        """The target's grid in the same coordinates."""
        return storage.clip(self.target_box).permute(inverse(self.axis_order))

    def to_source(self, box: Box) -> Box:
        """A box of the placement's coordinates as a box of the source tensor."""
        return box.shift(self.source_box.start)

    def from_source(self, box: Box) -> Box:
        return box.relative_to(self.source_box.start)

    def to_target(self, box: Box) -> Box:
        """A box of the placement's coordinates as a box of the target tensor."""
        return box.permute(self.axis_order).shift(self.target_box.start)

    def from_target(self, box: Box) -> Box:
        return box.relative_to(self.target_box.start).permute(inverse(self.axis_order))


@lru_cache(maxsize=64)
def _in_order(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes ``order``."""
    return tuple(order.index(d) for d in range(len(order)))
