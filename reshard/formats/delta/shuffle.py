"""The order of bytes in a payload of the encoding ``xor-shuffled``.

Of elements of two bytes, the low bytes of a block come before the high ones, so that the changes of a training step, which are mostly in low
bytes, lie side by side, and zeros with zeros. Elements of other sizes stay as they are: of four bytes, few of which change, it takes more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

SHUFFLED_BYTES = 64 << 10
"""Of a block, a part of the format. The smallest payloads were measured from 32 to 64 KiB."""

SHUFFLED_ITEMSIZE = 2


def shuffled(data: Bytes) -> Bytes:
    """Of each block the low bytes of all elements, then the high bytes; a new array. Only the last block may be shorter."""
    made = np.empty(len(data), np.uint8)
    whole = len(data) - len(data) % SHUFFLED_BYTES
    _shuffle(data[:whole], made[:whole], SHUFFLED_BYTES)
    _shuffle(data[whole:], made[whole:], len(data) - whole)
    return made


def _shuffle(data: Bytes, made: Bytes, block_bytes: int) -> None:
    """Blocks of one length. Arithmetic on whole elements runs many times as fast as copies with a stride."""
    if not len(data):
        return
    elements = data.view("<u2").reshape(-1, block_bytes // SHUFFLED_ITEMSIZE)
    halves = made.reshape(len(elements), SHUFFLED_ITEMSIZE, -1)
    halves[:, 0] = elements.astype(np.uint8)
    halves[:, 1] = (elements >> 8).astype(np.uint8)


def unshuffled(block: Bytes) -> Bytes:
    """The elements of one block; a new array."""
    half = len(block) // SHUFFLED_ITEMSIZE
    elements = block[half:].astype("<u2")
    elements <<= 8
    elements |= block[:half]
    return elements.view(np.uint8)
