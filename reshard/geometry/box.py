"""Box: an axis-aligned region of a tensor, start and stop per dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import starmap
from operator import add, ge, le, sub
from types import EllipsisType

from msgspec import Struct


class Box(Struct, frozen=True):
    """The elements ``start[d] <= i < stop[d]`` in each dimension ``d``.

    >>> Box((0, 2), (4, 6)).intersect(Box((2, 0), (8, 3)))
    Box(start=(2, 2), stop=(4, 3))
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def full(cls, shape: Sequence[int]) -> Box:
        """The box that covers a whole tensor of this shape."""
        return _full(tuple(shape))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar's box, 0 for an empty one."""
        return math.prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """The elements in both boxes; None if they do not overlap."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        if any(map(ge, start, stop)):
            return None
        return Box(start, stop)

    def contains(self, other: Box) -> bool:
        """True if every element of ``other`` is in this box."""
        starts = zip(self.start, other.start, strict=True)
        stops = zip(self.stop, other.stop, strict=True)
        return all(starmap(le, starts)) and all(starmap(ge, stops))

    def shift(self, offset: Sequence[int]) -> Box:
        """The same box moved by ``offset`` elements per dimension."""
        return Box(tuple(map(add, self.start, offset)), tuple(map(add, self.stop, offset)))

    def relative_to(self, origin: Sequence[int]) -> Box:
        """The same box with coordinates counted from ``origin``."""
        return Box(tuple(map(sub, self.start, origin)), tuple(map(sub, self.stop, origin)))

    def permute(self, order: Sequence[int]) -> Box:
        """The box whose dimension ``d`` is this one's dimension ``order[d]``."""
        return Box(
            tuple(map(self.start.__getitem__, order)), tuple(map(self.stop.__getitem__, order))
        )

    @property
    def slices(self) -> tuple[slice | EllipsisType, ...]:
        """For indexing an array: ``array[box.slices]`` is always a view, also for a scalar."""
        return (*map(slice, self.start, self.stop), ...)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


@lru_cache(maxsize=4096)
def _full(shape: tuple[int, ...]) -> Box:
    """The box of a whole tensor; cached, since there may be 100,000 tensors of one shape."""
    return Box((0,) * len(shape), shape)
