"""Frames: what changes in the blocks of a tensor, so that it can be done any number of times.

XOR done twice is nothing done. A frame holds the new bytes themselves, little-endian::

    u64 start in the tensor, u32 length of the block, u32 count of its bytes that change, u32 CRC-32 of all that follows and of these three
    count u16 positions in the block, ascending, then the count new bytes        where that is smaller than
    all bytes of the block

Blocks have at most 64 KiB and begin at multiples of it. Those in which nothing changes have no frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 64 << 10

_HEAD = struct.Struct("<QII")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size
_EACH_BYTES = 3
"""A position and a byte."""

MOST_FRAME_BYTES = HEAD_BYTES + BLOCK_BYTES


class RedoFrame(Struct, frozen=True):
    """What changes in one block.

    Attributes:
        start: of the block in the tensor.
        nbytes: of the block.
        positions: in the block; None where all of it is new.
        values: the new bytes.
    """

    start: int
    nbytes: int
    positions: Bytes | None
    values: Bytes

    @property
    def span(self) -> tuple[int, int]:
        """From where to where in the tensor bytes change: all that must be written."""
        if self.positions is None:
            return self.start, self.start + self.nbytes
        return self.start + int(self.positions[0]), self.start + int(self.positions[-1]) + 1


class BadFrameError(ValueError):
    """Bytes that are no frame."""


def frame_of(old: Bytes, new: Bytes, start: int) -> tuple[bytes, int]:
    """The frame of a block, and how many bytes change; no bytes where none do."""
    places = np.flatnonzero(old != new)
    count = len(places)
    if not count:
        return b"", 0
    if _is_sparse(count, len(new)):
        body = places.astype("<u2").tobytes() + new[places].tobytes()
    else:
        body = new.tobytes()
    head = _HEAD.pack(start, len(new), count)
    return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body, count


def frames_in(pieces: Iterator[bytes], nbytes: int) -> Iterator[RedoFrame]:
    """The frames of a tensor of ``nbytes``, in order, from their bytes in pieces of any size.

    Raises BadFrameError for bytes that are damaged, and for blocks out of order or beyond the tensor.
    """
    kept, end = b"", 0
    for piece in pieces:
        kept, at = kept + piece, 0
        while (size := _frame_bytes(kept, at)) <= len(kept) - at:
            frame = _frame(memoryview(kept)[at : at + size])
            if (
                frame.start < end
                or frame.start % BLOCK_BYTES
                or frame.start + frame.nbytes > nbytes
            ):
                raise BadFrameError(
                    f"a block at {frame.start} of {frame.nbytes} bytes, behind {end}"
                )
            yield frame
            end, at = frame.start + frame.nbytes, at + size
        kept = kept[at:]
    if kept:
        raise BadFrameError(f"{len(kept)} bytes are left over")


def redo(block: Bytes, frame: RedoFrame) -> bool:
    """Makes a block the new one, whatever part of it is new already; whether that changed anything."""
    if frame.positions is None:
        if np.array_equal(block, frame.values):
            return False
        block[:] = frame.values
        return True
    if np.array_equal(block[frame.positions], frame.values):
        return False
    block[frame.positions] = frame.values
    return True


def _is_sparse(count: int, nbytes: int) -> bool:
    return _EACH_BYTES * count < nbytes


def _frame_bytes(data: bytes, at: int) -> int:
    """The size of the frame that begins there; of one whose head is not there yet, more than there is."""
    if len(data) - at < HEAD_BYTES:
        return HEAD_BYTES
    nbytes: int
    _, nbytes, count = _HEAD.unpack_from(data, at)
    if not 0 < count <= nbytes <= BLOCK_BYTES:
        raise BadFrameError(f"a block of {nbytes} bytes, of which {count} change")
    return HEAD_BYTES + (_EACH_BYTES * count if _is_sparse(count, nbytes) else nbytes)


def _frame(data: memoryview) -> RedoFrame:
    head, body = data[: _HEAD.size], data[HEAD_BYTES:]
    start, nbytes, count = _HEAD.unpack(head)
    (crc,) = _CRC.unpack(data[_HEAD.size : HEAD_BYTES])
    if crc != zlib.crc32(body, zlib.crc32(head)):
        raise BadFrameError(f"its CRC-32 at {start} is another one")
    if not _is_sparse(count, nbytes):
        return RedoFrame(start, nbytes, None, np.frombuffer(body, np.uint8))
    positions = np.frombuffer(body, "<u2", count)
    if int(positions[-1]) >= nbytes or bool((positions[1:] <= positions[:-1]).any()):
        raise BadFrameError(f"positions in a block of {nbytes} bytes that do not ascend")
    return RedoFrame(start, nbytes, positions, np.frombuffer(body, np.uint8, count, 2 * count))
