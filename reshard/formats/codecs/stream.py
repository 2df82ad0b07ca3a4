"""The base of all decoding streams: position, bounds, and the checks at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from reshard.formats.codecs.source import Source

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
