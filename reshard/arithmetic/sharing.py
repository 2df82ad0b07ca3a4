"""Sharing: the elements of a companion that codes share, such as the scale of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class Sharing(Struct, frozen=True):
    """The way in which codes share the elements of a companion.

    Attributes:
        tile: codes that share an element along each of their dimensions; 0 for all.
        axes: the dimension of the codes that each dimension of the companion belongs to; None for one that is for all.
    """

    tile: tuple[int, ...]
    axes: tuple[int | None, ...]

    @classmethod
    def of_each(cls, *tile: int) -> Sharing:
        """That of a companion that has the dimensions of the codes."""
        return cls(tile, tuple(range(len(tile))))

    def box(self, box: Box) -> Box:
        """The elements that a box of codes needs."""
        whole = box.in_tiles(self.tile)
        start = tuple(0 if axis is None else whole.start[axis] for axis in self.axes)
        return Box(start, tuple(1 if axis is None else whole.stop[axis] for axis in self.axes))

    def spread(self, shared: Array, box: Box) -> Array:
        """The element of each code of a box, from those of ``self.box``; dimensions have the size 1 where all of the box share it."""
        shape = [1] * box.rank
        # The last dimension first: rows are then copied whole.
        for dim, axis in reversed(list(enumerate(self.axes))):
            if axis is not None:
                if (size := self.tile[axis]) > 1 and shared.shape[dim] > 1:
                    own = slice(box.start[axis] % size, box.start[axis] % size + box.shape[axis])
                    shared = shared.repeat(size, dim)[(*(slice(None),) * dim, own)]
                shape[axis] = shared.shape[dim]
        return shared.reshape(shape)

    def multiply(self, numbers: Array, shared: Array, box: Box) -> None:
        """Multiplies the numbers of a box by the elements that they share, in place. NaN has one sign."""
        numbers *= self.spread(shared, box)
        if not np.isfinite(shared).all():
            numbers[np.isnan(numbers)] = np.nan  # processors disagree about the sign of 0 × inf
