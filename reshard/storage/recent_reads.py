"""Small reads of metadata, kept for a while if a version identifies their content.

A checkpoint is looked at several times before it is read: its leaves are counted to price them, its record is compared, a plan
is made and then carried out. On a disk the kernel caches these reads. In a bucket each read is a request; the content of a
version never changes, so that it can be kept here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing

from msgspec import Struct

from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.location import Location

MOST_BYTES = 16 << 20
"""The most bytes kept in this process."""

_LARGEST_BYTES = 4 << 20
"""A larger read is not kept: it would evict all others."""

_Key = tuple[str, str, int, int]


class _RecentReads:
    """The latest reads; safe from any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: _Key, data: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data
                self._nbytes += len(data)
            while self._nbytes > MOST_BYTES:
                self._nbytes -= len(self._kept.popitem(last=False)[1])


_READS = _RecentReads()


def open_for_parts(file: Location, found: FileStatus, block_bytes: int = 0) -> OpenFile:
    """Opens a file for many short reads; in a bucket they are kept, as those of ``read_part``.

    ``block_bytes``: in a bucket the file is read in blocks of this size; 0 reads what is asked for.
    """
    if file.traits.by_requests:
        return _Parts(file, found, block_bytes)
    return file.open(found.version)


class _Parts(Struct, frozen=True):
    """An object that is read in parts, which are kept; implements ``base.OpenFile``."""

    file: Location
    found: FileStatus
    block_bytes: int

    def fill(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            number, start = divmod(offset + done, self.block_bytes or 1 << 62)
            if self.block_bytes:
                block = read_part(
                    self.file, self.found, number * self.block_bytes, self.block_bytes
                )
                data = block[start : start + len(out) - done]
            else:
                data = read_part(self.file, self.found, start, len(out) - done)
            if not data:  # the end of the file
                break
            out[done : done + len(data)] = data
            done += len(data)
        return done

    def read(self, offset: int, nbytes: int) -> bytes:
        if not self.block_bytes:
            return read_part(self.file, self.found, offset, nbytes)
        out = bytearray(nbytes)
        done = self.fill(offset, memoryview(out))
        return bytes(out[:done])

    def close(self) -> None:
        """Does nothing: no connection is open."""


def read_part(file: Location, found: FileStatus, offset: int, nbytes: int, what: str = "") -> bytes:
    """The bytes of a file from ``offset``, fewer only at its end; ``found`` is its status, ``what`` its purpose.

    Raises StorageError if it cannot be read, FormatError if it is not a plain file.
    """
    key = (str(file), found.version, offset, nbytes)
    is_kept = bool(found.version) and nbytes <= _LARGEST_BYTES
    if is_kept and (kept := _READS.get(key)) is not None:
        return kept
    with closing(file.open(found.version, what)) as opened:
        data = opened.read(offset, nbytes)
    if is_kept:
        _READS.keep(key, data)
    return data
