"""Chunks stored as they are, and chunks that are not stored at all."""

from __future__ import annotations

import numpy as np

from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import SourceStream


class RawStream(SourceStream):
    """Element bytes as they lie: read straight into the caller's buffer.

    The CRC32C trailer is checked where every byte was read in order; a stream that skipped cannot
    tell, and ``close_checked`` returns False.
    """

    def __init__(self, source: Source, decoded_bytes: int) -> None:
        super().__init__(source, decoded_bytes)
        if source.length != decoded_bytes:
            raise source.corrupt(f"it should hold {decoded_bytes} bytes, but has {source.length}")

    def skip(self, nbytes: int) -> None:
        self._advance(nbytes)
        self._source.seek(nbytes)

    def _make(self, out: memoryview) -> None:
        self._source.readinto(out)

    def _check_end(self) -> None:
        """Nothing can be left over: the length was compared at the start."""


class FillStream:
    """The decoded bytes of a chunk that is not stored: one element repeated."""

    def __init__(self, fill: bytes, decoded_bytes: int) -> None:
        if not fill or decoded_bytes % len(fill):
            raise ValueError(f"{decoded_bytes} bytes are no multiple of a fill of {len(fill)}")
        self._fill = np.frombuffer(fill if any(fill) else b"\0", np.uint8)
        self._left = decoded_bytes
        self._phase = 0

    def readinto(self, out: memoryview) -> None:
        octets = np.frombuffer(out, np.uint8)
        turned = np.roll(self._fill, -self._phase)
        whole = len(octets) - len(octets) % len(turned)
        octets[:whole].reshape(-1, len(turned))[:] = turned
        octets[whole:] = turned[: len(octets) - whole]
        self.skip(len(octets))

    def skip(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self._left:
            raise ValueError(f"{nbytes} bytes are wanted of a chunk with {self._left} left")
        self._left -= nbytes
        self._phase = (self._phase + nbytes) % len(self._fill)

    def close_checked(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""
