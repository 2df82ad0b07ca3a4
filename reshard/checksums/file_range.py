"""The CRC32C of a range of an open file, read in pieces."""

from __future__ import annotations

from collections.abc import Callable

READ_BYTES = 1 << 20
"""Memory that one call takes."""


def range_crc32c(read: Callable[[int, int], bytes], offset: int, nbytes: int) -> int | None:
    """CRC32C of ``nbytes`` from ``offset``; None if the file ends before.

    Args:
        read: gives the bytes from an offset, by their number; none where the file has ended.
    """
    from awscrt.checksums import crc32c

    crc, at, end = 0, offset, offset + nbytes
    while at < end:
        data = read(at, min(READ_BYTES, end - at))
        if not data:
            return None
        crc, at = crc32c(data, crc), at + len(data)
    return crc
