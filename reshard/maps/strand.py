"""Strand: one way through the parts of a side, ``(g [r d | d])``, as a box of a view of the tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.maps.shape import AxisItem, AxisItems, Parts, TensorAxes
from reshard.maps.solve_sizes import size_of

Choices = tuple[int, ...]
"""The number of the part that was chosen at each ``[ | ]``, in the order of the text."""

MAX_STRANDS = 4096
"""Most strands of one side."""


class Cell(Struct, frozen=True):
    """One dimension of the view, and the strand's share of it.

    Attributes:
        name: of the dimension; None where it is one place of another.
    """

    size: int
    start: int
    stop: int
    name: str | None = None


class Strand(Struct, frozen=True):
    """A box of a view: the cells of each axis.

    Attributes:
        fixed: places of dimensions that the view cannot split, so that each has a strand of its own.
    """

    axes: tuple[tuple[Cell, ...], ...]
    fixed: Mapping[str, int]


def strands(side: TensorAxes, sizes: Mapping[str, int]) -> list[list[Strand]]:
    """The strands of each choice, in the order of the text; ValueError for more than MAX_STRANDS.

    >>> [[len(of.axes[0]) for of in each] for each in strands((("g", Parts((("r", "d"), ("d",)))),), {"g": 2, "r": 3, "d": 4})]
    [[3], [2]]
    """
    found: dict[Choices, list[Strand]] = {}
    ways = [list(itertools.islice(_axis_ways(axis, sizes), MAX_STRANDS + 1)) for axis in side]
    if math.prod(map(len, ways)) > MAX_STRANDS:
        raise ValueError(f"its brackets stand for more than {MAX_STRANDS:,} boxes of one tensor")
    for combined in itertools.product(*ways):
        choices = tuple(itertools.chain.from_iterable(way.choices for way in combined))
        fixed: dict[str, int] = {}
        for way in combined:
            fixed |= way.fixed
        part = found.setdefault(choices, [])
        if all(place < sizes[name] for name, place in fixed.items()):  # else the part is empty
            part.append(Strand(tuple(way.cells for way in combined), fixed))
    return [found[choices] for choices in sorted(found)]


class _Way(Struct, frozen=True):
    cells: tuple[Cell, ...] = ()
    choices: Choices = ()
    fixed: Mapping[str, int] = {}

    def after(self, *cells: Cell, choices: Choices = (), fixed: Mapping[str, int] = {}) -> _Way:
        """The way behind these cells, choices and places."""
        return _Way((*cells, *self.cells), (*choices, *self.choices), {**fixed, **self.fixed})


def _axis_ways(axis: AxisItems, sizes: Mapping[str, int]) -> Iterator[_Way]:
    whole = size_of(axis, sizes)
    yield from _ways(axis, whole or 0, 0, sizes)


def _ways(
    items: Sequence[AxisItem], whole: int, offset: int, sizes: Mapping[str, int]
) -> Iterator[_Way]:
    """The ways through items that lie from ``offset`` on in a dimension of ``whole`` places."""
    if not items:
        yield _Way((Cell(whole, offset, offset + 1),))
        return
    first, rest = items[0], items[1:]
    behind = size_of(tuple(rest), sizes) or 0
    if isinstance(first, Parts):
        yield from _ways_of_parts(first, rest, whole, offset, sizes)
    elif not rest:
        yield _Way((Cell(whole, offset, offset + sizes[first], first),))
    elif not whole or (behind and not whole % behind and not offset % behind):
        start = offset // behind if behind else 0
        cell = Cell(whole // behind if behind else sizes[first], start, start + sizes[first], first)
        for way in _ways(rest, behind, 0, sizes):
            yield way.after(cell)
    else:  # the view cannot split there: a strand for each place
        for place in range(max(1, sizes[first]) if behind else 1):
            for way in _ways(rest, whole, offset + place * behind, sizes):
                yield way.after(fixed={first: place})


def _ways_of_parts(
    item: Parts, rest: Sequence[AxisItem], whole: int, offset: int, sizes: Mapping[str, int]
) -> Iterator[_Way]:
    behind = size_of(tuple(rest), sizes) or 0
    for number, part in enumerate(item.parts):
        for way in _ways((*part, *rest), whole, offset, sizes):
            yield way.after(choices=(number,))
        offset += (size_of(part, sizes) or 0) * behind
