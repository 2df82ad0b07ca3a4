"""Coverage: checks that boxes, in any order, cover each element of a tensor exactly once.

A digest that is added up from pieces does not notice a piece of zeros, which contributes nothing, nor a piece that
is counted twice, which cancels out. So that neither hides an element that was never written, the positions of the
pieces are added up too: an element at ``(i, j, …)`` counts
``(r0 - 1) r0^i (r1 - 1) r1^j …`` modulo a prime, which makes a box one short product, and makes a
tensor's value the sum over boxes that tile it and (but for one chance in 2^50) over no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from reshard.geometry.box import Box

PRIME = (1 << 61) - 1

_GENERATOR = 37
_STEP = 0x9E3779B97F4A7C15 % (PRIME - 1)
"""Its powers, as exponents, are so far apart that no two coordinates of a tensor collide."""


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
