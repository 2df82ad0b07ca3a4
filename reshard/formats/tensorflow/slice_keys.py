"""The keys under which slices of a tensor are stored: bytes that sort as their parts do.

::

    00                    whole number 0
    name 00 01            text; within it 00 is 00 ff and ff is ff 00
    rank                  whole number: the number of its bytes, then these, the highest first
    start length …        of each dimension, signed; a length of -1 is the whole dimension

A signed number takes k bytes for 7 k bits: big-endian two's complement with the first k bits inverted.
(``tensorflow/core/lib/strings/ordered_code.cc``, ``core/util/saved_tensor_slice_util.cc``)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

WHOLE = -1
"""The length of a slice that has a whole dimension."""


_ESCAPED = {0x00: b"\0\xff", 0xFF: b"\xff\0"}


def slice_key(name: bytes, extents: Sequence[tuple[int, int]]) -> bytes:
    """The key of a slice of a tensor: of each dimension start and length, ``WHOLE`` where it is stored so.

    >>> slice_key(b"a", [(0, 3), (64, -1)]).hex(" ")
    '00 61 00 01 01 02 80 83 c0 40 7f'
    """
    text = name
    if 0x00 in name or 0xFF in name:
        text = b"".join(_ESCAPED.get(octet, bytes([octet])) for octet in name)
    numbers = b"".join(sorting_bytes(number) for extent in extents for number in extent)
    return b"\0" + text + b"\0\1" + _whole(len(extents)) + numbers


def _whole(number: int) -> bytes:
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


@lru_cache(maxsize=4096)  # slices of many tensors begin at the same numbers
def sorting_bytes(number: int) -> bytes:
    """A whole number so that smaller ones sort first.

    >>> sorting_bytes(8192).hex(" ")
    'e0 20 00'
    """
    nbytes = (number if number >= 0 else ~number).bit_length() // 7 + 1
    ones = ((1 << nbytes) - 1) << (7 * nbytes)
    return ((number & ((1 << 8 * nbytes) - 1)) ^ ones).to_bytes(nbytes, "big")
