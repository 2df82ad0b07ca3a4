"""The base of all decoding streams: position, bounds, and the checks at the end; and streams over chunks without compression.

Such chunks are raw, or not stored, or have their axes in another order: zarr 2's order F, and zarr 3's transpose.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from reshard.formats.codecs.source import Source
from reshard.geometry.dtypes import opaque_dtype
from reshard.geometry.grid import Box
from reshard.geometry.row_major import run_boxes
from reshard.geometry.turned_copy import turned_copy

INPUT_BYTES = 256 << 10
"""Encoded bytes read at once; sizes from 64 KiB to 1 MiB were equally fast."""

SKIP_BYTES = 256 << 10
"""Scratch into which skipped bytes are decoded."""


class DecodeStream(Protocol):
    """The decoded bytes of one chunk, in order; used by one thread at a time."""

    def readinto(self, out: memoryview) -> None:
        """Fills all of ``out`` (contiguous bytes) with the next decoded bytes, or raises CorruptError."""
        ...

    def skip(self, nbytes: int) -> None:
        """Skip decoded bytes: a seek if bytes are raw, else they are decoded into a scratch."""
        ...

    def close_checked(self) -> bool:
        """Does the remaining checks, then closes.

        Skips to the end, then raises CorruptError if encoded bytes are left over, the frame is cut off or the CRC32C
        trailer is wrong. Returns False if bytes of a raw chunk were skipped unread, so that its trailer cannot be
        checked.
        """
        ...

    def close(self) -> None:
        """Close without checks; may be called twice."""
        ...


class SourceStream(ABC):
    """A stream over a Source; subclasses decode the next bytes."""

    def __init__(self, source: Source, decoded_bytes: int) -> None:
        self._source = source
        self._decoded_bytes = decoded_bytes
        self._position = 0

    def readinto(self, out: memoryview) -> None:
        out = out.cast("B") if out.format != "B" or out.ndim != 1 else out
        self._advance(len(out))
        self._make(out)

    def skip(self, nbytes: int) -> None:
        self._advance(nbytes)
        self._skip_decoded(nbytes)

    def _skip_decoded(self, nbytes: int) -> None:
        scratch = memoryview(bytearray(min(nbytes, SKIP_BYTES)))
        for done in range(0, nbytes, SKIP_BYTES):
            self._make(scratch[: nbytes - done])

    def close_checked(self) -> bool:
        try:
            self.skip(self._decoded_bytes - self._position)
            self._check_end()
            return self._source.check_trailer()
        finally:
            self.close()

    def close(self) -> None:
        self._source.close()

    @abstractmethod
    def _make(self, out: memoryview) -> None:
        """Fill ``out`` with the next decoded bytes or raise CorruptError."""

    @abstractmethod
    def _check_end(self) -> None:
        """Raises CorruptError unless exactly the encoded bytes were used."""

    def _advance(self, nbytes: int) -> None:
        self._position += nbytes
        if nbytes < 0 or self._position > self._decoded_bytes:
            raise self._source.corrupt(
                f"it has {self._decoded_bytes} decoded bytes, but byte {self._position} is requested"
            )

    def _cut_off(self, made: int) -> Exception:
        return self._source.corrupt(
            f"its encoded bytes end after {made} of {self._decoded_bytes} decoded bytes"
        )


_TILE_BYTES = 16 << 10


class RawStream(SourceStream):
    """Uncompressed element bytes, read straight into the caller's buffer.

    The CRC32C trailer is checked if every byte was read in order. After a skip it cannot be checked, and
    ``close_checked`` returns False.
    """

    def __init__(self, source: Source, decoded_bytes: int) -> None:
        super().__init__(source, decoded_bytes)
        if source.length != decoded_bytes:
            raise source.corrupt(f"it should have {decoded_bytes} bytes, but has {source.length}")

    def skip(self, nbytes: int) -> None:
        self._advance(nbytes)
        self._source.seek(nbytes)

    def read_box(self, box: Box, around: Sequence[int], itemsize: int, out: memoryview) -> None:
        """Fills ``out`` with a box of the chunk, of shape ``around``, and stays where the stream is."""
        self._source.fill_box(box, around, itemsize, out)

    def _make(self, out: memoryview) -> None:
        self._source.readinto(out)

    def _check_end(self) -> None:
        """Checks nothing: no byte can be left over, since the length was compared at the start."""


class AtOnceStream(SourceStream):
    """Element bytes that are gathered all at once, into the caller's buffer or one of its own."""

    def __init__(self, source: Source, decoded_bytes: int) -> None:
        super().__init__(source, decoded_bytes)
        self._gathered: memoryview | None = None

    def _make(self, out: memoryview) -> None:
        if len(out) == self._decoded_bytes:
            self._source.fill(0, out)
            return
        if self._gathered is None:
            self._gathered = memoryview(bytearray(self._decoded_bytes))
            self._source.fill(0, self._gathered)
        out[:] = self._gathered[self._position - len(out) : self._position]

    def _skip_decoded(self, nbytes: int) -> None:
        """Gathers nothing: skipped bytes are not needed."""

    def _check_end(self) -> None:
        """Checks nothing: raw pieces have nothing that could be left over."""


class FillStream:
    """The decoded bytes of a chunk that is not stored: one element repeated."""

    def __init__(self, fill: bytes, decoded_bytes: int) -> None:
        if not fill or decoded_bytes % len(fill):
            raise ValueError(f"{decoded_bytes} bytes are not a multiple of a fill of {len(fill)}")
        pattern = np.frombuffer(fill if any(fill) else b"\0", np.uint8)
        self._period = len(pattern)
        # Twice, so that a whole tile can begin at any byte of the element.
        self._tiles = np.tile(pattern, 2 * max(1, _TILE_BYTES // self._period))
        self._position = 0
        self._decoded_bytes = decoded_bytes

    def readinto(self, out: memoryview) -> None:
        octets = np.frombuffer(out, np.uint8)
        phase = self._position % self._period
        self.skip(len(octets))
        tile = self._tiles[phase : phase + len(self._tiles) // 2]
        whole = len(octets) - len(octets) % len(tile)
        octets[:whole].reshape(-1, len(tile))[:] = tile
        octets[whole:] = tile[: len(octets) - whole]

    def skip(self, nbytes: int) -> None:
        left = self._decoded_bytes - self._position
        if not 0 <= nbytes <= left:
            raise ValueError(f"{nbytes} bytes are requested of a chunk with {left} left")
        self._position += nbytes

    def close_checked(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing, since no file is open."""


class TurnedStream:
    """The elements of a chunk in row-major order, taken from the whole chunk as it is stored.

    Its first elements may be stored last, so the chunk is decoded whole, once, when something of it is first wanted.
    That is the only copy of it.

    Args:
        stored: the decoded bytes in the stored order; closed here.
        shape: of the chunk, padding included.
        axis_order: the axes as they are stored, slowest first.
    """

    def __init__(
        self, stored: DecodeStream, shape: Sequence[int], axis_order: Sequence[int], nbytes: int
    ) -> None:
        self._stored = stored
        self._shape = tuple(shape)
        self._order = tuple(axis_order)
        self._nbytes = nbytes
        self._itemsize = nbytes // max(1, math.prod(shape))
        self._elements: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = None
        self._position = 0

    def readinto(self, out: memoryview) -> None:
        """Fills ``out`` with whole elements."""
        elements = np.frombuffer(out, opaque_dtype(self._itemsize))
        start = self._position // self._itemsize
        self.skip(len(out))
        turned, at = self._decoded(), 0
        for box in run_boxes(self._shape, start, start + len(elements)):
            turned_copy(elements[at : at + box.size].reshape(box.shape), turned[box.slices])
            at += box.size

    def skip(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self._nbytes - self._position:
            raise ValueError(
                f"{nbytes} bytes are requested, but {self._nbytes - self._position} are left"
            )
        self._position += nbytes

    def close_checked(self) -> bool:
        """True: all of the chunk is decoded, whatever was skipped of it."""
        try:
            self._decoded()
        finally:
            self.close()
        return True

    def close(self) -> None:
        self._elements = None
        self._stored.close()

    def _decoded(self) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """The chunk, its axes in the tensor's order."""
        if self._elements is None:
            memory = np.empty(self._nbytes, np.uint8)
            self._stored.readinto(memory.data)
            self._stored.close_checked()
            stored = memory.view(opaque_dtype(self._itemsize))
            shape = [self._shape[axis] for axis in self._order]
            self._elements = stored.reshape(shape).transpose(np.argsort(self._order))
        return self._elements
