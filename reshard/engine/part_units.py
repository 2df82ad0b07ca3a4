"""The units of a plan that one part of a conversion does: the plan, in order, is cut into parts of equal weight.

Every part computes the same cuts, since all have the same plan. Cuts are whole numbers, so that no rounding leaves a unit out
or gives it to two parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.storage.parts import Part

ALL = Part(1, 1)
"""The only part of a conversion that is not cut."""


class WeightRange(Struct, frozen=True):
    """The range of weights that one part takes of something that has ``weight`` and begins at ``first``.

    All of it is ``total``; part ``number`` of ``count``, from 1, goes from ``total * (number - 1) / count`` on.
    """

    first: int
    weight: int
    total: int
    number: int
    count: int

    def units(self, count: int) -> range:
        """The units, of ``count`` units of equal weight, that begin in the part.

        Unit ``j`` begins at ``first + weight * j / count``; all is multiplied by ``count`` and by the number of parts.
        """
        start, end = self.total * (self.number - 1) * count, self.total * self.number * count
        before, step = self.first * count * self.count, self.weight * self.count
        return range(_ceil(start - before, step, count), _ceil(end - before, step, count))


def _ceil(above: int, step: int, most: int) -> int:
    """``above / step``, rounded up, within 0 and ``most``."""
    return min(max(0, -(-above // step)), most)


def part_ranges(part: Part, weights: Sequence[int]) -> Iterator[WeightRange]:
    """The range of a part in each of several consecutive things.

    >>> [list(of.units(2)) for of in part_ranges(Part(2, 2), [3, 1, 4])]
    [[], [], [0, 1]]
    """
    # Each gets one more, so that things of no weight belong to one part, too.
    heavier = [weight + 1 for weight in weights]
    total = sum(heavier)
    starts = itertools.accumulate(heavier, initial=0)
    for first, weight in zip(starts, heavier, strict=False):
        yield WeightRange(first, weight, total, part.number, part.count)
