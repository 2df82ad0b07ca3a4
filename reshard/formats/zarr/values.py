"""Values: locates the values of a key-value store in files. ShardIndexes: locates those that are inner chunks of a zarr 3 shard.

Orbax keeps arrays under keys such as ``params.kernel/.zarray`` and ``params.kernel/0.1``, either as
plain files of those names (``PlainFiles``) or in an OCDBT database (``ocdbt/index``).

In plain files the key is the path, which is looked up on demand. If a checkpoint omits chunks that have only the fill value, a
missing file means that value. A file that is removed during the read must not mean it. So such a checkpoint is listed when it
is opened, and every listed file must still exist later.

The index of a shard is a table of (offset, length) per inner chunk in row-major order, 64-bit little-endian,
counted from the shard's start; both are 2^64-1 if a chunk is not stored; with a CRC32C after it if
the index codecs say so (https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/).
"""

from __future__ import annotations

import math
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Protocol

from reshard.errors import CorruptError, StorageError
from reshard.formats.contents import Extent
from reshard.formats.zarr.metadata import ShardIndexing
from reshard.storage.base import Store
from reshard.storage.location import Location, open_file


class Values(Protocol):
    """Look-up of the extent of each value; safe from any thread."""

    def find(self, key: str, what: str, /) -> Extent | None:
        """The value's extent within its file, or None if there is no such value.

        Raises CorruptError, naming ``what``, if the extent reaches beyond the end of its file.
        """
        ...

    def below(self, prefix: str) -> Iterator[str]:
        """The rest of each key behind ``prefix``, which is "" or ends with a slash. Nothing is looked up key by key."""
        ...

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory of the look-up."""
        ...


def read_extents(store: Store, extents: Iterable[Extent]) -> dict[Extent, bytes]:
    """The bytes of values in a bucket, many at once; those that cannot be read are left out."""
    from reshard.storage.calls import ByteRange, read_many

    of_parts: dict[ByteRange, Extent] = {}

    def parts() -> Iterator[ByteRange]:
        for one in extents:
            if one.inline is None:
                part = ByteRange(one.path, one.version, one.offset, one.length)
                of_parts[part] = one
                yield part

    return {of_parts[part]: data for part, data in read_many(store, parts()).items()}


def read_extent(extent: Extent, what: str, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a value: ``length`` of them from ``start``, or all.

    Raises StorageError if the file cannot be read, CorruptError, naming ``what``, if it ends too early.
    """
    size = extent.length - start if length is None else length
    if extent.inline is not None:
        return extent.inline[start : start + size]
    with closing(open_file(extent.path, extent.version, what)) as file:
        data = file.read(extent.offset + start, size)
    if len(data) != size:
        raise CorruptError(
            f"{what}: truncated: expected {size:,} bytes from offset {extent.offset + start:,} of "
            f"{extent.path}, found {len(data):,}; restore the file from a copy"
        )
    return data


_KEY_BYTES = 150
"""Memory of a listed key, besides its text (measured)."""


class PlainFiles:
    """The files below one item's folder; with ``is_listed`` the present files are remembered."""

    def __init__(self, folder: Location, *, is_listed: bool = False) -> None:
        self._folder = folder
        self._is_listed = is_listed
        self._store = folder.store
        self._root = f"{folder.path}/"
        self._listed = frozenset(folder.files()) if is_listed else frozenset()

    def listed(self) -> PlainFiles:
        """The same files; those that are present now are remembered."""
        return self if self._is_listed else PlainFiles(self._folder, is_listed=True)

    def below(self, prefix: str) -> Iterator[str]:
        """The path from the folder ``prefix`` of every file below it, in one listing of that folder."""
        return (self._folder / prefix.removesuffix("/")).files()

    @property
    def metadata_bytes(self) -> int:
        return sum(_KEY_BYTES + len(key) for key in self._listed)

    def find(self, key: str, what: str) -> Extent | None:
        """The whole file; one look-up per call. Names that lead elsewhere were refused before."""
        path = self._root + key
        found = self._store.status(path, what)
        if found is None:
            if key in self._listed:
                raise StorageError(
                    f"{what}: {self._folder / key} was there when the checkpoint was opened and is gone now; "
                    "keep the checkpoint until it is read, then run again"
                )
            return None
        text = str(Location(self._store, path))
        if found.kind != "file":
            raise CorruptError(f"{what}: {text} should be a plain file, but is not")
        return Extent(text, 0, found.nbytes, version=found.version)


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
