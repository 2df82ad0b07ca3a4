"""Inner chunks of a zarr 3 shard, found through the shard's index.

The index is a table of (offset, length) per inner chunk in row-major order, 64-bit little-endian,
counted from the shard's start; both are 2^64-1 if a chunk is not stored; with a CRC32C after it if
the index codecs say so (https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/).
"""

from __future__ import annotations

import math
import struct
import threading
from collections import OrderedDict

from reshard.errors import CorruptError
from reshard.formats.contents import Extent
from reshard.formats.values import read_extent
from reshard.formats.zarr.metadata import ShardIndexing

MISSING = (1 << 64) - 1

_ENTRY = struct.Struct("<QQ")
_CHECKSUM_BYTES = 4


class ShardIndexes:
    """Indexes of shards, the latest of them kept up to ``max_bytes``; safe from any thread."""

    def __init__(self, max_bytes: int = 4 << 20) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def inner(
        self, shard: Extent, indexing: ShardIndexing, number: int, what: str
    ) -> Extent | None:
        """Extent of the shard's inner chunk ``number``, or None if it is not stored.

        Raises CorruptError, naming ``what``, if the index is damaged or leads out of the shard.
        """
        offset, length = _ENTRY.unpack_from(
            self._table(shard, indexing, what), number * _ENTRY.size
        )
        if offset == length == MISSING:
            return None
        if offset + length > shard.length:
            raise CorruptError(
                f"{what}: the shard's index names {length:,} bytes from offset {offset:,}, but the "
                f"shard in {shard.path} has only {shard.length:,}; restore the file from a copy"
            )
        if shard.inline is not None:
            return Extent(shard.path, 0, length, shard.inline[offset : offset + length])
        return Extent(shard.path, shard.offset + offset, length, version=shard.version)

    def _table(self, shard: Extent, indexing: ShardIndexing, what: str) -> bytes:
        if shard.inline is not None or math.prod(indexing.parts) == 1:
            return read_shard_index(shard, indexing, what)  # met once, so keeping it would not help
        key = (shard.path, shard.offset)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        table = read_shard_index(shard, indexing, what)
        with self._lock:
            self._keep(key, table)
        return table

    def _keep(self, key: tuple[str, int], table: bytes) -> None:
        if key not in self._kept and len(table) <= self.max_bytes:
            self._kept[key] = table
            self._kept_bytes += len(table)
        while self._kept_bytes > self.max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


def read_shard_index(shard: Extent, indexing: ShardIndexing, what: str) -> bytes:
    """The table of a shard's index, its CRC32C checked if it has one."""
    table_bytes = math.prod(indexing.parts) * _ENTRY.size
    size = table_bytes + (_CHECKSUM_BYTES if indexing.checksum else 0)
    if size > shard.length:
        raise CorruptError(
            f"{what}: truncated: the shard in {shard.path} has {shard.length:,} bytes, but its index "
            f"alone takes {size:,}; restore the file from a copy"
        )
    data = read_extent(shard, what, shard.length - size if indexing.at_end else 0, size)
    table = data[:table_bytes]
    if indexing.checksum:
        _check(table, data[table_bytes:], shard, what)
    return table


def _check(table: bytes, recorded: bytes, shard: Extent, what: str) -> None:
    from awscrt import checksums

    found = checksums.crc32c(table)
    expected = int.from_bytes(recorded, "little")
    if found != expected:
        raise CorruptError(
            f"{what}: the index of the shard in {shard.path} should have the CRC32C {expected:08x}, "
            f"but has {found:08x}; the file is damaged; restore it from a copy"
        )
