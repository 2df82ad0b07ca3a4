"""Chunk files: writes an encoded chunk whole, or a raw one in pieces and then its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.checksums.tensor_digest import CRC32C, finish
from reshard.engine.error_context import about_tensor
from reshard.engine.output import Put
from reshard.engine.task import TargetChunk, Task
from reshard.formats.codecs import encode_chunk
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.storage.local import WRITE_BYTES, open_new, storage_errors, write_all

if TYPE_CHECKING:
    from reshard.engine.buffers import Bytes


class StoredChunk(Struct, frozen=True):
    """What was stored as which chunk, so that its digest can be taken later.

    Attributes:
        data: its decoded bytes, from which it was encoded.
        nbytes: its size as it is stored, checksum included.
    """

    target: TargetChunk
    data: Bytes
    nbytes: int


def store_chunk(
    task: Task, target: TargetChunk, data: Bytes, root: str, put: Put | None
) -> StoredChunk:
    """Encodes a whole chunk and writes it below ``root``."""
    with about_tensor(task.placement.target, target.index, task.placement.source):
        encoded = encode_chunk(task.target_encoding, data.data)
        nbytes = sum(map(len, encoded))
        if nbytes <= WRITE_BYTES or target.file is None:
            encoded = (b"".join(encoded),)  # one call for a small one and its checksum
        if target.file is None and put is not None:
            put(task.placement.target, target.index, encoded[0])
        else:
            write_chunk(f"{root}/{target.file}", encoded)
    return StoredChunk(target, data, nbytes)


def write_chunk(path: str, parts: Sequence[bytes | memoryview]) -> int:
    """Writes the parts of an encoded chunk one behind the other; their bytes together."""
    fd, offset = open_new(path), 0
    try:
        for part in parts:
            write_all(fd, memoryview(part), offset, path)
            offset += len(part)
    finally:
        with storage_errors("close", path):
            os.close(fd)
    return offset


def write_runs(fd: int, path: str, data: memoryview, runs: Sequence[tuple[int, int]]) -> None:
    """Writes a piece of a raw chunk; ``runs`` are the offset and length of each of its parts in the file."""
    start = 0
    for offset, nbytes in runs:
        write_all(fd, data[start : start + nbytes], offset, path)
        start += nbytes


def close_chunk(path: str, crc32c: int | None, stored_bytes: int) -> int:
    """As ``end_chunk``, of a file that is not open."""
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
