"""Writes the sorted table that ``formats.tensorflow.table`` reads."""

from __future__ import annotations

from collections.abc import Iterable

from reshard.checksums.crc import CRC32C
from reshard.formats.tensorflow.table import FOOTER_BYTES, MAGIC, masked
from reshard.formats.tensorflow.wire import varint_bytes

BLOCK_BYTES = 256 << 10
"""A block that is this long ends, as in TensorFlow."""

_RESTART_ENTRIES = 16
"""So many entries share beginnings of keys; the next one has its whole key."""


def table_bytes(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table of keys and values, which are given in the order of the keys."""
    table, handles = bytearray(), list[tuple[bytes, bytes]]()
    block = _Block(_RESTART_ENTRIES)
    for key, value in entries:
        block.add(key, value)
        if block.nbytes >= BLOCK_BYTES:
            handles.append((key, _append(table, block.finished())))
            block = _Block(_RESTART_ENTRIES)
    if block.last or not handles:
        handles.append((block.last, _append(table, block.finished())))
    unused = _append(table, _Block(1).finished())
    index = _Block(1)
    for last, handle in handles:
        index.add(last, handle)
    of_index = _append(table, index.finished())
    return bytes(table) + (unused + of_index).ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


class _Block:
    """Entries; each has only the part of its key that the one before does not have."""

    def __init__(self, restart: int) -> None:
        self.last = b""
        self._restart = restart
        self._content = bytearray()
        self._restarts = [0]
        self._count = 0

    @property
    def nbytes(self) -> int:
        return len(self._content)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._count == self._restart:
            self._restarts.append(len(self._content))
            self._count = 0
        elif self._count:
            shared = _shared(self.last, key)
        sizes = (shared, len(key) - shared, len(value))
        self._content += b"".join(map(varint_bytes, sizes)) + key[shared:] + value
        self.last = key
        self._count += 1

    def finished(self) -> bytes:
        offsets = (*self._restarts, len(self._restarts))
        return bytes(self._content) + b"".join(n.to_bytes(4, "little") for n in offsets)


def _shared(a: bytes, b: bytes) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((place for place, (x, y) in pairs if x != y), min(len(a), len(b)))


def _append(table: bytearray, block: bytes) -> bytes:
    """Adds a block; returns its handle."""
    handle = varint_bytes(len(table)) + varint_bytes(len(block))
    stored = block + b"\0"  # not compressed
    table += stored + masked(CRC32C.of(stored)).to_bytes(4, "little")
    return handle
