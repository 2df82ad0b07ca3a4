"""Groups the regions of a tensor that share chunks, so that each chunk is read once.

Along each dimension overlapping regions are merged, and the tensor is split at every chunk edge that no merged
region crosses::

    chunks    |   :   |   :   |       two regions per chunk, so every chunk edge splits:
    regions   | a | b | c | d |       group (a, b) reads the first chunk, (c, d) the second
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from reshard.geometry.box import Box
from reshard.geometry.grid import Cuts, Grid, Index
from reshard.restoring.regions import Region

ReadGroup: TypeAlias = tuple[int, ...]
"""The numbers of regions that are filled from the same chunks."""


def read_groups(regions: Sequence[Region], storage: Grid) -> list[ReadGroup]:
    """Groups of regions that share no chunk, in row-major order; each empty region is a group of its own."""
    cuts = [
        _splitting_edges([(h.box.start[d], h.box.stop[d]) for h in regions if h.size], stored)
        for d, stored in enumerate(storage.cuts)
    ]
    grouped: dict[Index, list[int]] = defaultdict(list)
    empty: list[ReadGroup] = []
    for number, region in enumerate(regions):
        if not region.size:
            empty.append((number,))
            continue
        place = tuple(bisect_right(c, a) - 1 for c, a in zip(cuts, region.box.start, strict=True))
        grouped[place].append(number)
    return [*(tuple(grouped[i]) for i in sorted(grouped)), *empty]


def split_group(group: ReadGroup, sizes: Sequence[int], most_bytes: int) -> Iterator[ReadGroup]:
    """The group in parts of at most ``most_bytes``, each of at least one region; ``sizes`` are the sizes of all
    regions."""
    taken: list[int] = []
    taken_bytes = 0
    for number in group:
        if taken and taken_bytes + sizes[number] > most_bytes:
            yield tuple(taken)
            taken, taken_bytes = [], 0
        taken.append(number)
        taken_bytes += sizes[number]
    yield tuple(taken)


class RegionIndex:
    """Finds the regions of a group that overlap a box, by one bisection per dimension."""

    def __init__(self, regions: Sequence[Region], group: ReadGroup, shape: tuple[int, ...]) -> None:
        filled = [(n, regions[n].box) for n in group if regions[n].size]
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
        """Numbers of the regions whose boxes overlap ``box``, in order."""
        cells = itertools.product(*self._grid.overlapping(box))
        return sorted({n for index in cells for n in self._cells.get(index, ())})


def chunk_indices(regions: Sequence[Region], group: ReadGroup, storage: Grid) -> list[Index]:
    """The chunks that the group's regions need, in row-major order."""
    found: set[Index] = set()
    for number in group:
        if regions[number].size:
            found.update(itertools.product(*storage.overlapping(regions[number].box)))
    return sorted(found)


def _splitting_edges(spans: Sequence[tuple[int, int]], stored: Cuts) -> Cuts:
    """The chunk edges of one dimension that no span crosses."""
    merged: list[list[int]] = []
    for start, stop in sorted(set(spans)):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    starts = [start for start, _ in merged]
    return tuple(c for c in stored if not _crosses(merged, bisect_left(starts, c) - 1, c))


def _crosses(merged: Sequence[Sequence[int]], last: int, edge: int) -> bool:
    return last >= 0 and merged[last][1] > edge
