"""Box: an axis-aligned region of a tensor, start and stop per dimension. Grid: a tensor cut into boxes by cuts along each dimension.

A chunk grid, a sharding and an even or uneven partition are all grids. Intersecting two is a
bisect per dimension, never a scan over pairs::

    cuts (0, 4, 8) × (0, 3, 6)      box (1, 0) is rows 4:8, columns 0:3
       0   3   6
    0  +---+---+
       |0,0|0,1|
    4  +---+---+
       |1,0|1,1|
    8  +---+---+
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from operator import add, ge, gt, le, lt, sub
from types import EllipsisType

from msgspec import Struct

from reshard.errors import LayoutError


class Box(Struct, frozen=True, gc=False):
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

    @classmethod
    def around(cls, boxes: Sequence[Box]) -> Box:
        """The smallest box around all of ``boxes``; there is at least one."""
        starts, stops = [box.start for box in boxes], [box.stop for box in boxes]
        return cls(
            tuple(map(min, zip(*starts, strict=True))), tuple(map(max, zip(*stops, strict=True)))
        )

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

    def in_tiles(self, tile: Sequence[int]) -> Box:
        """The tiles that have elements of the box, counted from the start of the tensor; 0 is a tile of all of a dimension.

        >>> Box((100, 7), (200, 9)).in_tiles((64, 0))
        Box(start=(1, 0), stop=(4, 1))
        """
        start = tuple(a // size if size else 0 for a, size in zip(self.start, tile, strict=True))
        stop = tuple(-(-b // size) if size else 1 for b, size in zip(self.stop, tile, strict=True))
        return Box(start, stop)

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


Cuts = tuple[int, ...]
Index = tuple[int, ...]

MAX_PARTS = 1 << 20
"""Most parts along one dimension. Metadata with more is damaged or hostile; the cuts would take 40 MB."""

# Layers of a model repeat their shapes, so tensors share their cuts. Longer cuts are not kept: only damaged or hostile
# metadata has many of them.
_SHARED_PARTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor of ``shape`` cut at ``cuts``; each dimension's cuts begin with 0 and end with its size.

    A dimension of size 0 has the single cut ``(0,)`` and therefore no parts; a scalar has one part.
    """

    shape: tuple[int, ...]
    cuts: tuple[Cuts, ...]

    def __post_init__(self) -> None:
        if len(self.cuts) != len(self.shape):
            raise LayoutError(
                f"a grid over shape {self.shape} needs {len(self.shape)} tuples of cuts, not {len(self.cuts)}"
            )
        for dim, (size, cuts) in enumerate(zip(self.shape, self.cuts, strict=True)):
            if not _rises(cuts, size):
                raise LayoutError(
                    f"cuts of dimension {dim} must rise from 0 to its size {size}, but are {_brief(cuts)}"
                )

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Grid:
        """The grid of one box, the whole tensor."""
        return _whole(tuple(shape))

    @classmethod
    def regular(cls, shape: Sequence[int], chunk: Sequence[int]) -> Grid:
        """Boxes of ``chunk`` elements, the last of each dimension clipped.

        >>> Grid.regular((10,), (4,)).cuts
        ((0, 4, 8, 10),)
        """
        if len(shape) != len(chunk):
            raise LayoutError(
                f"a chunk of shape {tuple(chunk)} has {len(chunk)} dimensions, the tensor of shape "
                f"{tuple(shape)} has {len(shape)}"
            )
        return _risen(tuple(shape), tuple(map(_regular_cuts, shape, chunk)))

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of boxes along each dimension."""
        return tuple([len(c) - 1 for c in self.cuts])

    @property
    def count(self) -> int:
        """Number of boxes."""
        count = 1
        for cuts in self.cuts:
            count *= len(cuts) - 1
        return count

    def box(self, index: Index) -> Box:
        """The box at ``index``."""
        # Lists, here and below: a tree of small tensors calls this 100,000 times, and generators take twice
        # as long.
        return Box(
            tuple([c[i] for c, i in zip(self.cuts, index, strict=True)]),
            tuple([c[i + 1] for c, i in zip(self.cuts, index, strict=True)]),
        )

    def indices(self) -> Iterator[Index]:
        """Every index in row-major order."""
        return itertools.product(*map(range, self.parts))

    def number_of(self, index: Index) -> int:
        """The number of a part by its index, counted row-major."""
        return row_major_number(index, self.parts)

    def index_at(self, number: int) -> Index:
        """The index of a part by its number, counted row-major."""
        index: list[int] = []
        for parts in reversed(self.parts):
            number, at = divmod(number, parts)
            index.append(at)
        return tuple(reversed(index))

    def boxes(self) -> Iterator[Box]:
        """Every box in row-major order of its index."""
        return map(self.box, self.indices())

    def overlapping(self, box: Box) -> tuple[range, ...]:
        """Per dimension, the indices of the boxes that ``box`` touches.

        Parts outside of the tensor touch no box; an empty dimension has an empty range.

        >>> Grid((8,), ((0, 3, 6, 8),)).overlapping(Box((2,), (5,)))
        (range(0, 2),)
        """
        return tuple(
            [_touched(c, a, b) for c, a, b in zip(self.cuts, box.start, box.stop, strict=True)]
        )

    def common(self, other: Grid) -> Grid:
        """The grid of the cuts that both grids share; its boxes are the aligned blocks."""
        self._check_same_shape(other)
        return _risen(self.shape, tuple(map(_common_cuts, self.cuts, other.cuts)))

    def refine(self, other: Grid) -> Grid:
        """The grid with the cuts of both: each of its boxes is inside one box of each grid."""
        self._check_same_shape(other)
        return _risen(self.shape, tuple(map(_union_cuts, self.cuts, other.cuts)))

    def _check_same_shape(self, other: Grid) -> None:
        if self.shape != other.shape:
            raise LayoutError(
                f"two grids can only be combined over one shape, not over {self.shape} and {other.shape}"
            )

    def clip(self, box: Box) -> Grid:
        """This grid within ``box``, in coordinates counted from the box's start.

        A box that reaches outside the tensor is a LayoutError.
        """
        if box.stop == self.shape and not any(box.start):
            return self
        if any(map(gt, box.stop, self.shape)) or min(box.start, default=0) < 0:
            raise LayoutError(f"box {box} reaches outside the grid's shape {self.shape}")
        return _risen(box.shape, self.cuts_in(box))

    def cuts_in(self, box: Box) -> tuple[Cuts, ...]:
        """The cuts of ``clip``, for a box that is known to lie within the tensor."""
        ends = zip(self.cuts, box.start, box.stop, strict=True)
        return tuple([_clip_cuts(c, a, b) for c, a, b in ends])

    def are_cuts(self, places: Sequence[int]) -> bool:
        """True if the grid is cut at each of these places, one for each dimension and within it."""
        return all(map(_is_cut, self.cuts, places))

    def permute(self, order: Sequence[int]) -> Grid:
        """The grid whose dimension ``d`` is this one's dimension ``order[d]``."""
        in_order = tuple(range(len(self.shape)))
        if tuple(order) == in_order:
            return self
        if tuple(sorted(order)) != in_order:
            raise LayoutError(
                f"{tuple(order)} is not an order of the {len(self.shape)} dimensions of {self.shape}"
            )
        shape, cuts = self.shape, self.cuts
        return _risen(tuple([shape[o] for o in order]), tuple([cuts[o] for o in order]))

    @property
    def largest(self) -> tuple[int, ...]:
        """Size of the largest part along each dimension (0 if there is none)."""
        return tuple(map(_largest_part, self.cuts))


@lru_cache(maxsize=4096)
def _whole(shape: tuple[int, ...]) -> Grid:
    """The grid of one box; cached, since there may be 100,000 tensors of one shape."""
    return Grid.regular(shape, [max(1, n) for n in shape])


def row_major_number(index: Sequence[int], parts: Sequence[int]) -> int:
    """The number of the place at ``index`` of an array of this shape, counted row-major.

    >>> row_major_number((1, 2), (4, 5))
    7
    """
    number = 0
    for at, count in zip(index, parts, strict=True):
        number = number * count + at
    return number


def _regular_cuts(size: int, step: int) -> Cuts:
    if size < 0:
        raise LayoutError(f"a dimension cannot have the size {size}")
    if size == 0:
        return (0,)
    if step < 1:
        raise LayoutError(f"a chunk of {step} elements cannot cut a dimension of {size}")
    parts = -(-size // step)
    if parts > MAX_PARTS:
        raise LayoutError(
            f"a dimension of {size} in steps of {step} has {parts} parts; at most {MAX_PARTS} are allowed"
        )
    return _shared_cuts(size, step) if parts <= _SHARED_PARTS else (*range(0, size, step), size)


@lru_cache(maxsize=256)
def _shared_cuts(size: int, step: int) -> Cuts:
    return (*range(0, size, step), size)


def _common_cuts(a: Cuts, b: Cuts) -> Cuts:
    if a is b:
        return a
    few, many = sorted((a, b), key=len)
    return tuple(c for c in few if _is_cut(many, c))


def _union_cuts(a: Cuts, b: Cuts) -> Cuts:
    if a is b:
        return a
    few, many = sorted((a, b), key=len)
    new = [c for c in few if not _is_cut(many, c)]
    return tuple(sorted((*many, *new))) if new else many


def _is_cut(cuts: Cuts, at: int) -> bool:
    # One bisect for each cut of the coarser grid: a set of all cuts would cost more than everything else.
    return cuts[bisect_left(cuts, at)] == at


def _largest_part(cuts: Cuts) -> int:
    if len(cuts) == 2:
        return cuts[1]  # the common case; there may be 100,000
    return max(map(sub, cuts[1:], cuts), default=0)


def _risen(shape: tuple[int, ...], cuts: tuple[Cuts, ...]) -> Grid:
    """A grid of cuts that are known to rise; checking them again would take most of a plan's time."""
    grid = object.__new__(Grid)
    object.__setattr__(grid, "shape", shape)
    object.__setattr__(grid, "cuts", cuts)
    return grid


def _rises(cuts: Cuts, size: int) -> bool:
    return bool(cuts) and cuts[0] == 0 and cuts[-1] == size and all(map(lt, cuts, cuts[1:]))


def _brief(cuts: Cuts) -> str:
    return f"{cuts}" if len(cuts) <= 8 else f"({', '.join(map(str, cuts[:8]))}, …)"


def _touched(cuts: Cuts, start: int, stop: int) -> range:
    first = max(0, bisect_right(cuts, start) - 1)
    last = min(len(cuts) - 1, bisect_left(cuts, stop))
    return range(first, last) if start < stop and first < last else range(0)


def _clip_cuts(cuts: Cuts, start: int, stop: int) -> Cuts:
    if start == stop:
        return (0,)
    if start == 0 and stop == cuts[-1]:
        return cuts
    inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, stop)]
    return (0, *[c - start for c in inner], stop - start)
