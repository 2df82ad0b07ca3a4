"""Differences: what some elements of two tensors differ in; the parts of a tensor are added up in any order.

Sums of squares are whole numbers, so that nothing is rounded and the order of the parts does not matter.
"""

from __future__ import annotations

import math

from msgspec import Struct


class Differences(Struct, frozen=True):
    """The differences of some elements; ``x + y`` is the result for both parts, in any order.

    Attributes:
        elements: how many differ.
        nonfinite: how many of the differing elements are NaN or infinite on at least one side.
        nans, infinities: how many of all elements are NaN, or infinite, in A and in B.
        largest: the largest absolute difference; None if no two finite elements differ.
        at: row-major number of the element with that difference; without one, of the first that differs.
        squares: exact sum of the squared differences, in units of 2 ** -2400.
        squares_a: the same for the squared elements of A, where A and B are finite.
    """

    elements: int = 0
    nonfinite: int = 0
    nans: tuple[int, int] = (0, 0)
    infinities: tuple[int, int] = (0, 0)
    largest: int | float | None = None
    at: int | None = None
    squares: int = 0
    squares_a: int = 0

    def __add__(self, other: Differences) -> Differences:
        """Both parts together; if largest differences are equal, the first in row-major order counts."""
        found = min((self, other), key=_order)
        return Differences(
            self.elements + other.elements,
            self.nonfinite + other.nonfinite,
            _added(self.nans, other.nans),
            _added(self.infinities, other.infinities),
            found.largest,
            found.at,
            self.squares + other.squares,
            self.squares_a + other.squares_a,
        )

    @property
    def relative(self) -> float:
        """The norm of the difference over the norm of A; 0.0 for no difference, inf if only A is 0."""
        return _root_of_ratio(self.squares, self.squares_a)


def _order(found: Differences) -> tuple[bool, float, float]:
    size = -1 if found.largest is None else found.largest
    return found.at is None, -size, math.inf if found.at is None else found.at


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _root_of_ratio(a: int, b: int) -> float:
    """The square root of ``a / b``, both of any size."""
    if not a or not b:
        return math.inf if a else 0.0
    shift = (b.bit_length() - a.bit_length() + 128) // 2 * 2
    ratio = (a << shift) // b if shift >= 0 else a // (b << -shift)
    try:
        return math.ldexp(math.isqrt(ratio), -shift // 2)
    except OverflowError:
        return math.inf
