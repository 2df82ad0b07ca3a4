"""Which units of a plan one part of a conversion does: the plan, in order, is cut into parts of equal weight.

Every part comes to the same cuts, since all have the same plan. Cuts are whole numbers, so that no rounding leaves a unit out
or gives it to two parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from msgspec import Struct


class Range(Struct, frozen=True):
    """From where to where one part goes within something of ``weight`` at ``first``, in the weight of the whole plan.

    All of it is ``total``; part ``number`` of ``count``, from 1, goes from ``total * (number - 1) / count`` on.
    """

    first: int
    weight: int
    total: int
    number: int
    count: int

    def units(self, count: int) -> range:
        """Those of ``count`` units of equal weight that begin in the part.

        Unit ``j`` begins at ``first + weight * j / count``; all is multiplied by ``count`` and by the number of parts.
        """
        start, end = self.total * (self.number - 1) * count, self.total * self.number * count
        before, step = self.first * count * self.count, self.weight * self.count
        return range(_ceil(start - before, step, count), _ceil(end - before, step, count))


def _ceil(above: int, step: int, most: int) -> int:
    """``above / step``, rounded up, within 0 and ``most``."""
    return min(max(0, -(-above // step)), most)


class Share(Struct, frozen=True):
    """Part ``number`` of ``count``, from 1."""

    number: int = 1
    count: int = 1

    def ranges(self, weights: Sequence[int]) -> Iterator[Range]:
        """What is of this part in each of several things that follow one another.

        >>> [list(of.units(2)) for of in Share(2, 2).ranges([3, 1, 4])]
        [[], [1], [0, 1]]
        """
        # One more each, so that what weighs nothing is of one part, too.
        heavier = [weight + 1 for weight in weights]
        total = sum(heavier)
        starts = itertools.accumulate(heavier, initial=0)
        for first, weight in zip(starts, heavier, strict=False):
            yield Range(first, weight, total, self.number, self.count)


ALL = Share()
"""The whole conversion."""
