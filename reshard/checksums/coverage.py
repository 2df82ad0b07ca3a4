"""Coverage: checks that boxes, in any order, cover each element of a tensor exactly once.

A digest that is added up from pieces does not notice a piece of zeros, which contributes nothing, nor a piece that
is counted twice, which cancels out. Either could hide an element that was never written. So the positions of the pieces
are added up too. An element at ``(i, j, …)`` counts ``(r0 - 1) r0^i (r1 - 1) r1^j …`` modulo a prime, so the sum over a
box is one short product. Boxes that tile a tensor add up to the tensor's value; any others do so with a chance of one
in 2^50.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from reshard.geometry.box import Box

PRIME = (1 << 61) - 1

_GENERATOR = 37
_STEP = 0x9E3779B97F4A7C15 % (PRIME - 1)
"""Its powers are exponents, so far apart that no two coordinates of a tensor collide."""


def coverage(boxes: Iterable[Box]) -> int:
    """The sum over the elements of ``boxes``, modulo ``PRIME``."""
    return sum(map(coverage_of, boxes)) % PRIME


def coverage_of(box: Box) -> int:
    """The sum over the elements of one box; 1 for a scalar's."""
    value = 1
    for dim, (start, stop) in enumerate(zip(box.start, box.stop, strict=True)):
        value = value * _along(dim, start, stop) % PRIME
    return value


@lru_cache(maxsize=1 << 14)
def _along(dim: int, start: int, stop: int) -> int:
    base = _base(dim)
    return pow(base, stop, PRIME) - pow(base, start, PRIME)


@lru_cache(maxsize=64)
def _base(dim: int) -> int:
    return pow(_GENERATOR, pow(_STEP, dim + 1, PRIME - 1), PRIME)
