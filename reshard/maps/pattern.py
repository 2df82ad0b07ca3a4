"""PiecePattern: a piece of a rule before its indices are known: a box of a source's view, and the box of a target that it becomes.

A rule compiles to patterns once; each of its targets then costs no more than filling in indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.geometry.grid import Box
from reshard.geometry.view import View
from reshard.maps.shape import Cell, ViewBox

MAX_REPEATS = 4096
"""Most times that a rule repeats one box."""


class Bound(Struct, frozen=True):
    """A box of a tensor's view in which some dimensions are places that indices name.

    Attributes:
        indices: the dimension and the index of each.
        view: None where no dimension is split.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    indices: tuple[tuple[int, str], ...]
    view: View | None

    def at(self, values: Mapping[str, int]) -> Box:
        """The box for these indices."""
        if not self.indices:
            return Box(self.start, self.stop)
        start, stop = list(self.start), list(self.stop)
        for dim, name in self.indices:
            start[dim] += values[name]
            stop[dim] = start[dim] + 1
        return Box(tuple(start), tuple(stop))


class PiecePattern(Struct, frozen=True):
    """A box of one of a rule's sources, and the box of one of its targets that it becomes.

    Attributes:
        source, target: their numbers in the rule; the source is -1 where an element fills the target.
        only: the indices that it is for; the others may have any place.
    """

    source: int
    target: int
    of_source: Bound
    of_target: Bound
    axis_order: tuple[int, ...]
    only: Mapping[str, int] = {}

    def is_for(self, values: Mapping[str, int]) -> bool:
        """True if it is for these indices, which may be some of all."""
        return not self.only or all(values.get(n, at) == at for n, at in self.only.items())


class Joining(Struct, frozen=True):
    """The facts by which both sides of a rule are joined.

    Attributes:
        sizes: of every dimension, as the sources have it; crops are applied.
        stacked: indices of the source's name, which are dimensions of targets.
        unstacked: indices of the targets' names, which are dimensions of sources.
    """

    sizes: Mapping[str, int]
    stacked: frozenset[str]
    unstacked: frozenset[str]


def joined(
    left: ViewBox, right: ViewBox, numbers: tuple[int, int], joining: Joining
) -> Iterator[PiecePattern]:
    """The patterns for a box of a source and one of a target; several where the target repeats elements of the source.

    Raises ValueError where the source has elements that the target does not take.
    """
    fixed = _agreed(left.fixed, right.fixed)
    if fixed is None or _is_beyond(fixed, joining.sizes):
        return
    in_left = {cell.name for axis in left.axes for cell in axis if cell.name}
    in_right = {cell.name for axis in right.axes for cell in axis if cell.name}
    _refuse_left_out(in_left - in_right - joining.unstacked - fixed.keys(), joining.sizes)
    lone = sorted(in_right - in_left - joining.stacked - fixed.keys())
    counts = [joining.sizes[name] for name in lone]
    if _product(counts) > MAX_REPEATS:
        raise ValueError(
            f"{' and '.join(map(repr, lone))} would repeat it more than {MAX_REPEATS:,} times"
        )
    for places in itertools.product(*map(range, counts)):
        at = {**fixed, **dict(zip(lone, places, strict=True))}
        yield _pattern(left, right, numbers, joining, at)


def _product(counts: Sequence[int]) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _agreed(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int] | None:
    both = {**left, **right}
    return both if all(both[name] == place for name, place in left.items()) else None


def _is_beyond(fixed: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """True if one of these places is cropped, or is padding."""
    return any(place >= sizes[name] for name, place in fixed.items())


def _refuse_left_out(names: set[str], sizes: Mapping[str, int]) -> None:
    lost = [name for name in sorted(names) if sizes[name] != 1]
    if lost:
        raise ValueError(
            f"its right side lacks the dimension {lost[0]!r} of {sizes[lost[0]]}, so that elements would be left out; name it there, or "
            f"as an index of 'to', or take a part of it (crop)"
        )


class _Half(Struct):
    """The cells of one side, each cut to the part that is taken."""

    axes: list[list[Cell]]

    def merge(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Merges cells that follow one another; the second of each pair is whole."""
        for first, second in pairs:
            for axis in self.axes:
                for at in range(len(axis) - 1):
                    a, b = axis[at], axis[at + 1]
                    if (a.name, b.name) == (first, second):
                        cell = Cell(a.size * b.size, a.start * b.size, a.stop * b.size, second)
                        axis[at : at + 2] = [cell]
                        break

    def neighbours(self) -> set[tuple[str, str]]:
        """Names of cells that follow one another, where the second is whole."""
        return {
            (a.name, b.name)
            for axis in self.axes
            for a, b in itertools.pairwise(axis)
            if a.name and b.name and (b.start, b.stop) == (0, b.size)
        }

    @property
    def cells(self) -> list[Cell]:
        return [cell for axis in self.axes for cell in axis]

    def with_ones(self, count: int) -> None:
        """Adds dimensions of one element before the first axis, which keep its elements where they are."""
        if count and not self.axes:
            raise ValueError("a scalar cannot be a part of another tensor; keep a dimension of 1")
        if count:
            self.axes[0][:0] = [Cell(1, 0, 1)] * count

    @property
    def view(self) -> View | None:
        if all(len(axis) == 1 for axis in self.axes):
            return None
        return View(tuple(tuple(cell.size for cell in axis) for axis in self.axes))


def _pattern(
    left: ViewBox,
    right: ViewBox,
    numbers: tuple[int, int],
    joining: Joining,
    at: Mapping[str, int],
) -> PiecePattern:
    mine = _Half([[_taken(cell, joining, at) for cell in axis] for axis in left.axes])
    theirs = _Half([[_taken(cell, joining, at) for cell in axis] for axis in right.axes])
    moved = {c.name for c in mine.cells if c.name} & {c.name for c in theirs.cells if c.name}
    moved -= at.keys() | joining.stacked | joining.unstacked
    while pairs := _mergeable(mine, theirs, moved):
        mine.merge(pairs[:1])
        theirs.merge(pairs[:1])
        moved.discard(pairs[0][0])
    lone_left = sum(cell.name not in moved for cell in mine.cells)
    lone_right = sum(cell.name not in moved for cell in theirs.cells)
    theirs.with_ones(max(0, lone_left - lone_right))
    mine.with_ones(max(0, lone_right - lone_left))
    only = {n: place for n, place in at.items() if n in joining.unstacked | joining.stacked}
    return PiecePattern(
        *numbers,
        _bound(mine, joining.unstacked - at.keys()),
        _bound(theirs, joining.stacked - at.keys()),
        _order(mine.cells, theirs.cells, moved),
        only,
    )


def _mergeable(mine: _Half, theirs: _Half, moved: set[str]) -> list[tuple[str, str]]:
    both = mine.neighbours() & theirs.neighbours()
    return sorted(pair for pair in both if moved >= set(pair))


def _taken(cell: Cell, joining: Joining, at: Mapping[str, int]) -> Cell:
    """The part of a cell that is taken: one place where that is fixed, else as much as the sources have."""
    if cell.name is None:
        return cell
    if cell.name in at:
        return replace(cell, start=cell.start + at[cell.name], stop=cell.start + at[cell.name] + 1)
    return replace(cell, stop=cell.start + joining.sizes[cell.name])


def _bound(half: _Half, indices: frozenset[str]) -> Bound:
    cells = half.cells
    found = tuple((dim, c.name) for dim, c in enumerate(cells) if c.name in indices and c.name)
    named = {dim for dim, _ in found}
    stop = tuple(c.start + 1 if dim in named else c.stop for dim, c in enumerate(cells))
    return Bound(tuple(c.start for c in cells), stop, found, half.view)


def _order(mine: Sequence[Cell], theirs: Sequence[Cell], moved: set[str]) -> tuple[int, ...]:
    """The source's dimension for each dimension of the target; those of one element in their order."""
    places = {cell.name: dim for dim, cell in enumerate(mine) if cell.name in moved}
    ones = iter([dim for dim, cell in enumerate(mine) if cell.name not in moved])
    return tuple(places[c.name] if c.name in moved else next(ones) for c in theirs)


def padding(
    right: ViewBox, number: int, padded: Sequence[str], sizes: Mapping[str, int]
) -> Iterator[PiecePattern]:
    """The patterns of the places that ``pad`` adds: beyond each padded dimension, within those before it.

    ``sizes``: of every dimension, as the sources have it.
    """
    if _is_beyond(right.fixed, sizes):
        yield filled_cells(right.axes, number)
        return
    own = {cell.name for axis in right.axes for cell in axis}
    names = [name for name in padded if name in own]
    for at, name in enumerate(names):
        inside = {other: sizes[other] for other in names[:at]}
        yield filled_cells(
            [[_beyond(c, name, sizes[name], inside) for c in axis] for axis in right.axes], number
        )


def filled_cells(axes: Sequence[Sequence[Cell]], number: int) -> PiecePattern:
    """The pattern of cells of a target that an element fills."""
    bound = _bound(_Half([list(axis) for axis in axes]), frozenset())
    return PiecePattern(-1, number, bound, bound, tuple(range(len(bound.start))))


def _beyond(cell: Cell, name: str, size: int, inside: Mapping[str, int]) -> Cell:
    if cell.name == name:
        return replace(cell, start=cell.start + size)
    return replace(cell, stop=cell.start + inside.get(cell.name or "", cell.stop - cell.start))
