"""Writes the end of a raw chunk that was written in pieces: its checksum."""

from __future__ import annotations

import os

from reshard.checksums.tensor_digest import CRC32C, finish
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.storage.local import open_new, storage_errors, write_all


def close_chunk(path: str, crc32c: int | None, stored_bytes: int) -> int:
    """``end_chunk`` of a file that is not open."""
    fd = open_new(path)
    try:
        return end_chunk(fd, path, crc32c, stored_bytes)
    finally:
        with storage_errors("close", path):
            os.close(fd)


def end_chunk(fd: int, path: str, crc32c: int | None, stored_bytes: int) -> int:
    """Gives a chunk its CRC32C trailer (from ``crc32c``, its linear part) and its full size, in bytes."""
    with storage_errors("finish", path):
        if crc32c is None:
            os.ftruncate(fd, stored_bytes)
        else:
            trailer = finish(CRC32C, crc32c, stored_bytes).to_bytes(TRAILER_BYTES, "little")
            write_all(fd, memoryview(trailer), stored_bytes, path)
    return stored_bytes if crc32c is None else stored_bytes + TRAILER_BYTES
