"""How much an OCDBT manifest or node would become, found before TensorStore decodes it.

A node of some hundred bytes may decode to gigabytes: its body is compressed, and each key names how
many bytes it shares with the one before. Here the body is decompressed up to a limit and the lengths in
it are added up (https://google.github.io/tensorstore/kvstore/ocdbt/index.html#storage-format)::

    magic:4  length:8  version:varint  compression:varint  body  crc32c:4
    body of a node: height:1, data files: count, shared lengths, own lengths, base lengths, text;
                    entries: count, shared lengths, own lengths, …

Whether the bytes make sense otherwise is left to TensorStore.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.limits import MAX_NODE_BYTES

_HEADER_BYTES, _TRAILER_BYTES = 14, 4
_ZSTD = 1
_LONGEST_VARINT = 10


def check_manifest(path: Path) -> None:
    """Refuse a manifest that is no plain file, or larger than any, before or after decompression."""
    where = str(path)
    _body(_read(where, 0, None, where), where)


def count_entries(path: str, offset: int, length: int, where: str) -> int:
    """The number of entries of a node, which was found to be of bearable size.

    Raises FormatError where it would take more than ``MAX_NODE_BYTES``, CorruptError where it ends
    within its own lengths, StorageError where it cannot be read.
    """
    body = _body(_read(path, offset, length, where), where)
    lengths = _Lengths(body, where)
    lengths.skip(1)
    files = lengths.number()
    expanded = lengths.total(max(0, files - 1))
    text = lengths.total(files)
    lengths.total(files)
    lengths.skip(int(min(text, MAX_NODE_BYTES)))
    entries = lengths.number()
    expanded += lengths.total(max(0, entries - 1)) + text + lengths.total(entries)
    if expanded > MAX_NODE_BYTES:
        raise _too_large(where, f"{expanded:,.0f} bytes of keys and paths")
    return entries


def _read(path: str, offset: int, length: int | None, where: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read_open(descriptor, offset, length, where)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise CorruptError(
            f"{where} cannot be decoded: the file {path} is missing; restore the folder from a copy"
        ) from None
    except OSError as error:
        raise StorageError(f"{where}: {path} cannot be read: {error.strerror}") from error


def _read_open(descriptor: int, offset: int, length: int | None, where: str) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(
            f"{where} should be a plain file, but is none; restore the folder from a copy"
        )
    wanted = status.st_size if length is None else length
    if wanted > MAX_NODE_BYTES:
        raise _too_large(where, f"{wanted:,} bytes")
    return os.pread(descriptor, wanted, offset)


def _body(data: bytes, where: str) -> bytes:
    """The decompressed body, or nothing where TensorStore will refuse the header anyway."""
    if len(data) < _HEADER_BYTES + _TRAILER_BYTES or data[12] or data[13] > _ZSTD:
        return b""
    packed = data[_HEADER_BYTES:-_TRAILER_BYTES]
    return _decompressed(packed, where) if data[13] == _ZSTD else packed


def _decompressed(packed: bytes, where: str) -> bytes:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=MAX_NODE_BYTES).stream_reader(packed)
    try:
        body = reader.read(MAX_NODE_BYTES + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise CorruptError(
            f"{where} cannot be decompressed: {error}; restore the folder from a copy"
        ) from None
    if len(body) > MAX_NODE_BYTES:
        raise _too_large(where, "more, once decompressed")
    return body


def _too_large(where: str, found: str) -> FormatError:
    return FormatError(
        f"{where}: a part of a database's index takes at most {MAX_NODE_BYTES:,} bytes, but this one takes "
        f"{found}; no program writes such an index in earnest"
    )


class _Lengths:
    """Variable-length numbers read one after the other: 7 bits a byte, the last with its top bit clear."""

    def __init__(self, body: bytes, where: str) -> None:
        self._bytes = np.frombuffer(body, np.uint8)
        self._at, self._where = 0, where

    def skip(self, nbytes: int) -> None:
        self._at += nbytes

    def number(self) -> int:
        found = self.total(1)
        if found > len(self._bytes):
            raise self._cut_short()
        return int(found)

    def total(self, count: int) -> float:
        """The sum of the next ``count`` numbers; a float, since they may be anything."""
        if not count:
            return 0.0
        window = self._bytes[self._at : self._at + _LONGEST_VARINT * count]
        ends = np.flatnonzero(window < 0x80)[:count]
        if len(ends) < count:
            raise self._cut_short()
        used = window[: ends[-1] + 1]
        starts = np.concatenate(([0], ends[:-1] + 1))
        places = np.arange(len(used)) - np.repeat(starts, np.diff(starts, append=len(used)))
        self._at += len(used)
        return float(((used & 0x7F) * np.exp2(7.0 * places)).sum())

    def _cut_short(self) -> CorruptError:
        return CorruptError(
            f"{self._where} ends within the lengths of its keys; restore the folder from a copy"
        )
