"""Shares: the parts of equal cost into which anything is cut that has atoms, as whole numbers.

An atom is some units of equal cost; each unit goes to one part. A process that knows the costs knows the share of every part, and
all processes find the same ones.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

HEAVY = 4
"""A unit above a quarter of the mean part is heavy. A part gets at most one light unit too many, so that it stays below
1.25 × the mean; there are at most four heavy units a part to be placed one by one."""


class Shares:
    """The units of each of ``parts`` parts.

    Heavy units are placed first: the largest that is left on the part with the least. Light ones stay in their order. They are
    cut so that all parts are filled to one level; a part that is above it gets none. If no unit is above 0.3 × the mean,
    no part is above 1.3 ×. Else none is above 4/3 × the best possible, or 1.25 × the mean, if that is more.

    Args:
        costs: of a unit of each atom, above 0.
        counts: of units of each atom.
    """

    __slots__ = ("_costs", "_counts", "_ends", "_heavy", "_light", "_starts")

    def __init__(self, costs: Sequence[int], counts: Sequence[int], parts: int) -> None:
        every = list(zip(costs, counts, strict=True))
        total = sum([cost * count for cost, count in every])
        light, heavy = list[int](), list[tuple[int, int, int]]()
        for number, (cost, count) in enumerate(every):
            if cost * parts * HEAVY <= total:
                light.append(number)
            else:
                heavy += [(-cost, number, unit) for unit in range(count)]
        loads = [(0, part) for part in range(parts)]
        placed: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for cost, number, unit in sorted(heavy):
            load, part = loads[0]
            placed[part].append((number, unit))
            heapq.heapreplace(loads, (load - cost, part))
        starts = list(accumulate([costs[n] * counts[n] for n in light], initial=0))
        level = _level(sorted([load for load, _ in loads]), starts[-1])
        room = [0] * parts
        for load, part in loads:
            room[part] = max(0, level - load)
        self._costs, self._counts, self._light, self._heavy = costs, counts, light, placed
        ends, light_cost = list(accumulate(room, initial=0)), starts[-1]
        # Levels are rounded up, so that all rooms together may be a little more than what is light.
        self._starts = starts
        self._ends = [end * light_cost // max(1, ends[-1]) for end in ends]

    def of(self, part: int) -> Iterator[tuple[int, range]]:
        """The atoms of a part, counted from 0, each with the range of its units; an atom may come several times.

        >>> [list(Shares([1, 9, 1], [3, 1, 3], parts=2).of(part)) for part in (0, 1)]
        [[(1, range(0, 1))], [(0, range(0, 3)), (2, range(0, 3))]]
        """
        start, end = self._ends[part : part + 2]
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._light) and self._starts[at] < end:
            number = self._light[at]
            cost, most = self._costs[number], self._counts[number]
            # Units that begin in the share. An end beyond the last unit is none.
            first, stop = [-(-(edge - self._starts[at]) // cost) for edge in (start, end)]
            if units := range(max(0, first), min(most, stop)):
                yield number, units
            at += 1
        for number, unit in self._heavy.get(part, ()):
            yield number, range(unit, unit + 1)


def _level(loads: Sequence[int], light: int) -> int:
    """The lowest level to which parts with these loads, ascending, must be filled to take all that is light."""
    before = level = 0
    for count, (load, higher) in enumerate(pairwise([*loads, math.inf]), 1):
        before += int(load)
        level = -(-(before + light) // count)
        if level <= higher:
            break
    return level
