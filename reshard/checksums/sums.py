"""Sums: the contributions of a tensor's boxes to its proof, added up in any order.

A tensor is proved by its digest, the CRC-64/NVME of its row-major bytes, and by its coverage, which shows that every
element counted exactly once. Both are sums over boxes: tasks compute them beside the elements, and the books add them up. Only
this module decides which checksum a digest is.

Where elements change their order, type or place, both digests differ, and sums of elements by their places in the target are compared
(``checksums/weighted_sums.py``).

Coverage: a digest that is added up from pieces does not notice a missing piece of zeros, which contributes nothing, nor a piece that is
counted twice, which cancels out; nor does a weighted sum notice zeros. Each could hide an element that was never written. So the
positions of the pieces are added up too. An element at ``(i, j, …)`` counts ``(r0 - 1) r0^i (r1 - 1) r1^j …`` modulo a prime, so the sum
over a box is one short product. Boxes that tile a tensor add up to the tensor's value; any others do so with a chance of one in 2^50.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from reshard.checksums.crc import CRC64NVME, finish
from reshard.checksums.tensor_digest import linear_of_box
from reshard.checksums.weighted_sums import MODULUS
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Array = NDArray[Any]


Count = Annotated[int, Meta(ge=0)]


class Sums(Struct, frozen=True, gc=False, array_like=True):
    """The contributions of some boxes: to the tensor they were read from, and to the one they were written to.

    It encodes as the list of its fields.

    Attributes:
        source: their part of the source's digest, at their place in the source.
        target: their part of the target's digest, computed from the written elements and their places.
        read: coverage of the source's boxes.
        written: coverage of the target's boxes.
        is_seen: False if chunks travelled encoded, so that no element was seen.
        stored: their part of the CRCs that the source's format recorded (``PieceCrcs.total``); 0 if it recorded none.
        expected: the weighted sum that the target must have, computed from the elements that were read; 0 for elements that keep
            their bytes and places, as both digests are equal then.
        placed: the one that it has, computed from the written elements and their places; 0 likewise.
    """

    source: Count = 0
    target: Count = 0
    read: Count = 0
    written: Count = 0
    is_seen: bool = True
    stored: Count = 0
    expected: Count = 0
    placed: Count = 0

    def merge(self, other: Sums) -> Sums:
        """The sums of both."""
        return Sums(
            self.source ^ other.source,
            self.target ^ other.target,
            (self.read + other.read) % PRIME,
            (self.written + other.written) % PRIME,
            self.is_seen and other.is_seen,
            self.stored ^ other.stored,
            (self.expected + other.expected) % MODULUS,
            (self.placed + other.placed) % MODULUS,
        )


NOTHING = Sums()


def sum_of_box(elements: Array, box: Box, shape: tuple[int, ...]) -> int:
    """The contribution of ``elements`` at ``box`` of a tensor of ``shape`` to its digest, by XOR. ValueError for another shape."""
    return linear_of_box(CRC64NVME, elements, box, shape)


def digest_text(total: int, nbytes: int) -> str:
    """The digest of a tensor of ``nbytes`` from the sum over all of its boxes: 16 hex digits."""
    return f"{finish(CRC64NVME, total, nbytes):016x}"


def digest_of_bytes(data: Buffer, digest: int = 0) -> int:
    """The digest, as a number, of bytes that follow others whose digest is given."""
    return CRC64NVME.of(data, digest)


PRIME = (1 << 61) - 1
"""The largest Mersenne prime below 2**64, so that sums of residues stay within a machine word and a product within two."""

_GENERATOR = 37
"""The smallest primitive root modulo ``PRIME``: its powers go through every residue, so that no two coordinates of a dimension collide."""

_STEP = 0x9E3779B97F4A7C15 % (PRIME - 1)
"""2**64 divided by the golden ratio, as in Fibonacci hashing. Its powers are the exponents of the dimensions, so far apart that sums of
coordinates of two dimensions do not meet."""


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
