"""Groups the regions of a tensor that are filled together, so that each chunk is read once.

Holds that need a common chunk are filled together. Along each dimension holds are merged where they
overlap, and the tensor falls apart at each edge of a chunk that none of what is left reaches across::

    chunks   |   :   |   :   |        two holds a chunk, so every chunk edge parts units:
    holds    | a | b | c | d |        (a, b) from the first chunk, (c, d) from the second
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid, Index
from reshard.restoring.regions import Region


class Unit(Struct, frozen=True):
    """Holds, by their numbers, that are filled from the same chunks."""

    numbers: tuple[int, ...]


def units(holds: Sequence[Region], storage: Grid) -> list[Unit]:
    """The holds in groups that share no chunk, in row-major order; holds of nothing form one each."""
    cuts = [
        _parting([(h.box.start[d], h.box.stop[d]) for h in holds if h.size], stored)
        for d, stored in enumerate(storage.cuts)
    ]
    grouped: dict[Index, list[int]] = defaultdict(list)
    empty = []
    for number, hold in enumerate(holds):
        if not hold.size:
            empty.append(Unit((number,)))
            continue
        place = tuple(bisect_right(c, a) - 1 for c, a in zip(cuts, hold.box.start, strict=True))
        grouped[place].append(number)
    return [*(Unit(tuple(grouped[i])) for i in sorted(grouped)), *empty]


def parts(unit: Unit, sizes: Sequence[int], at_most: int) -> Iterator[Unit]:
    """The unit's holds in order, as many together as weigh no more than ``at_most``; at least one."""
    taken: list[int] = []
    weight = 0
    for number in unit.numbers:
        if taken and weight + sizes[number] > at_most:
            yield Unit(tuple(taken))
            taken, weight = [], 0
        taken.append(number)
        weight += sizes[number]
    yield Unit(tuple(taken))


class HoldIndex:
    """Which of a unit's holds a box touches, found by a bisect per dimension."""

    def __init__(self, holds: Sequence[Region], unit: Unit, shape: tuple[int, ...]) -> None:
        filled = [(n, holds[n].box) for n in unit.numbers if holds[n].size]
        cuts = [
            tuple(
                sorted({0, size, *(b.start[d] for _, b in filled), *(b.stop[d] for _, b in filled)})
            )
            for d, size in enumerate(shape)
        ]
        self._grid = Grid(shape, tuple(cuts))
        self._cells: dict[Index, list[int]] = defaultdict(list)
        for number, box in filled:
            for index in itertools.product(*self._grid.overlapping(box)):
                self._cells[index].append(number)

    def touching(self, box: Box) -> list[int]:
        """Numbers of the holds whose boxes meet ``box``, in order."""
        cells = itertools.product(*self._grid.overlapping(box))
        return sorted({n for index in cells for n in self._cells.get(index, ())})


def chunk_indices(holds: Sequence[Region], unit: Unit, storage: Grid) -> list[Index]:
    """The chunks that the unit's holds need, in row-major order."""
    found: set[Index] = set()
    for number in unit.numbers:
        if holds[number].size:
            found.update(itertools.product(*storage.overlapping(holds[number].box)))
    return sorted(found)


def _parting(stretches: Sequence[tuple[int, int]], stored: Cuts) -> Cuts:
    """The chunk edges of one dimension that no stretch reaches across."""
    merged: list[list[int]] = []
    for start, stop in sorted(set(stretches)):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    starts = [start for start, _ in merged]
    return tuple(c for c in stored if not _crosses(merged, bisect_left(starts, c) - 1, c))


def _crosses(merged: Sequence[Sequence[int]], last: int, edge: int) -> bool:
    return last >= 0 and merged[last][1] > edge
