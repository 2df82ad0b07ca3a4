"""Streams of uncompressed chunks, and of chunks that are not stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import SourceStream
from reshard.geometry.box import Box

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
        """Nothing can be left over: the length was compared at the start."""


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
        """What is passed over need not be gathered."""

    def _check_end(self) -> None:
        """Raw pieces have nothing that could be left over."""


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
        """Nothing is open."""
