"""The CRC32C of a range of an open file, read in pieces."""

from __future__ import annotations

import os

READ_BYTES = 1 << 20
"""Memory that one call takes."""


def range_crc32c(fd: int, offset: int, nbytes: int) -> int | None:
    """CRC32C of ``nbytes`` from ``offset``; None if the file ends before. Raises OSError if it cannot be read."""
    from awscrt.checksums import crc32c

    crc, at, end = 0, offset, offset + nbytes
    while at < end:
        data = os.pread(fd, min(READ_BYTES, end - at), at)
        if not data:
            return None
        crc, at = crc32c(data, crc), at + len(data)
    return crc
