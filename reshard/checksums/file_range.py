"""The CRC of a range of an open file, read in pieces."""

from __future__ import annotations

from collections.abc import Callable

from reshard.checksums.crc import CRC32C, Crc

READ_BYTES = 1 << 20
"""Memory that one call takes."""


def range_crc32c(read: Callable[[int, int], bytes], offset: int, nbytes: int) -> int | None:
    """CRC32C of ``nbytes`` from ``offset``; None if the file ends before. ``read`` as in ``range_crc``."""
    return range_crc(CRC32C, read, offset, nbytes)


def range_crc(crc: Crc, read: Callable[[int, int], bytes], offset: int, nbytes: int) -> int | None:
    """A CRC of ``nbytes`` from ``offset``; None if the file ends before.

    Args:
        read: gives the bytes from an offset, by their number; none where the file has ended.
    """
    value, at, end = 0, offset, offset + nbytes
    while at < end:
        data = read(at, min(READ_BYTES, end - at))
        if not data:
            return None
        value, at = crc.of(data, value), at + len(data)
    return value
