"""One node of an OCDBT database's B-tree, decoded in a stream: its columns, then its small values.

A node is (https://google.github.io/tensorstore/kvstore/ocdbt/index.html, B+tree node format)::

    magic 0x0cdb20de (big-endian), length (8 bytes), version 0, compression (0 none, 1 zstd)
    body: height, table of data files, number of entries, columns
    CRC32C of all that

Numbers are varints unless said otherwise, and lie column by column: the lengths of what each key
shares with the one before, of the rest, the keys' rests, and where the values or the children are.
So a node of 200,000 keys takes some MiB as arrays, where a dictionary for each takes 250.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NoReturn

from reshard.errors import CorruptError
from reshard.formats.base import Extent
from reshard.formats.codecs.source import Source
from reshard.formats.limits import MAX_INLINE_BYTES, MAX_NODE_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[np.int64]

MAX_ENTRIES = 1 << 20
"""TensorStore's own limit for a node."""

MAX_KEY_BYTES = 1 << 16
MAX_FILES = 1 << 20
MAX_WINDOW_BYTES = 1 << 27
"""zstd's largest; a window is in memory only as far as it is filled."""

_HEADER = struct.Struct(">I8s")
_MAGIC = 0x0CDB20DE
_BLOCK_BYTES = 64 << 10
_MAX_VARINT_BYTES = 9
"""Numbers below 2^63."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a node names, below the database: its base path holds for the nodes in it too."""

    base: str
    relative: str

    @property
    def path(self) -> str:
        return self.base + self.relative


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a node.

    Attributes:
        key: of a leaf's entry the key, below the prefix of its leaf; of an inner one the part that
            all keys below it share.
        file: where the value or the child lies; None where ``inline`` has the value.
    """

    key: bytes
    file: DataFile | None
    offset: int
    length: int
    inline: bytes = b""


class Node:
    """A node in a file, opened; ``entries`` reads it to its end and then checks its CRC32C.

    Args:
        base: the base path of the file that it lies in.
        where: names database and node in messages.

    Raises CorruptError for whatever contradicts the format, StorageError where the file cannot be read.
    """

    def __init__(self, extent: Extent, base: str, where: str) -> None:
        self._where = where
        self._source = Source(extent, where, checksum=True)
        try:
            self._body = _Body(self._open_body(extent), where)
            self.height = self._body.take(1)[0]
            self._files = _data_files(self._body, base)
            self.count = self._body.number()
            if not 0 < self.count <= MAX_ENTRIES:
                self._body.refuse(f"it has {self.count} entries")
        except BaseException:
            self.close()
            raise

    def _open_body(self, extent: Extent) -> IO[bytes]:
        header = self._source.read(_HEADER.size)
        if len(header) < _HEADER.size or _HEADER.unpack(header)[0] != _MAGIC:
            raise CorruptError(
                f"{self._where} is no node of a B-tree; restore the folder from a copy"
            )
        length = int.from_bytes(header[4:], "little")
        version, compression = self._source.read(2)
        if length != extent.length or version != 0 or compression not in (0, 1):
            raise CorruptError(
                f"{self._where} says that it has {length:,} bytes (stored are {extent.length:,}), format "
                f"{version} (0 is known) and compression {compression} (0 and 1 are known); restore the "
                "folder from a copy"
            )
        if compression == 0:
            return self._source  # type: ignore[return-value]
        from zstandard import ZstdDecompressor

        decoder = ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return decoder.stream_reader(self._source, read_size=_BLOCK_BYTES)  # type: ignore[arg-type]

    def entries(self) -> Iterator[Entry]:
        """The entries in order; the node is closed afterwards."""
        with closing(self):
            yield from self._children() if self.height else self._values()
            self._body.check_end()
            self._source.read_rest()
            self._source.check_trailer()

    def close(self) -> None:
        self._source.close()

    def _values(self) -> Iterator[Entry]:
        body, count = self._body, self.count
        shared, rest = self._key_lengths()
        suffixes = self._suffixes(rest)
        lengths, kinds = body.column(count), body.column(count)
        if int(kinds.max()) > 1:
            body.refuse("it has a value of an unknown kind")
        outside = int(kinds.sum())
        numbers, offsets = body.column(outside), body.column(outside)
        self._check_files(numbers)
        places = zip(numbers.tolist(), offsets.tolist(), strict=True)
        keys = _keys(shared, rest, suffixes)
        for key, length, kind in zip(keys, lengths.tolist(), kinds.tolist(), strict=True):
            if kind:
                number, offset = next(places)
                yield Entry(key, self._files[number], offset, length)
            else:
                if length > MAX_INLINE_BYTES:
                    body.refuse(
                        f"it has a value of {length:,} bytes, and at most {MAX_INLINE_BYTES:,} are read"
                    )
                yield Entry(key, None, 0, length, body.take(length))

    def _children(self) -> Iterator[Entry]:
        body, count = self._body, self.count
        shared, rest = self._key_lengths()
        common = body.column(count)
        suffixes = self._suffixes(rest)
        numbers, offsets, lengths = body.column(count), body.column(count), body.column(count)
        self._check_files(numbers)
        for _ in ("keys", "bytes of the tree", "bytes of values"):
            body.column(count)
        keys = _keys(shared, rest, suffixes)
        places = zip(numbers.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
        for key, kept, (number, offset, length) in zip(keys, common.tolist(), places, strict=True):
            if kept > len(key):
                body.refuse("a child's keys share more than its first key has")
            yield Entry(key[:kept], self._files[number], offset, length)

    def _key_lengths(self) -> tuple[Column, Column]:
        """What each key shares with the one before, and what it has besides; checked."""
        import numpy as np

        shared = np.concatenate([np.zeros(1, np.int64), self._body.column(self.count - 1)])
        rest = self._body.column(self.count)
        whole = shared + rest
        if int(rest.max()) > MAX_KEY_BYTES or int(whole.max()) > MAX_KEY_BYTES:
            self._body.refuse(f"it has a key of more than {MAX_KEY_BYTES:,} bytes")
        if (shared[1:] > whole[:-1]).any():
            self._body.refuse("a key shares more than the key before it has")
        return shared, rest

    def _suffixes(self, rest: Column) -> bytes:
        size = int(rest.sum())
        if size > MAX_NODE_BYTES:
            self._body.refuse(
                f"its keys take {size:,} bytes, and at most {MAX_NODE_BYTES:,} are read"
            )
        return self._body.take(size)

    def _check_files(self, numbers: Column) -> None:
        if len(numbers) and int(numbers.max()) >= len(self._files):
            self._body.refuse("it names a data file that is not in its table")


def _keys(shared: Column, rest: Column, suffixes: bytes) -> Iterator[bytes]:
    key, at = b"", 0
    for kept, added in zip(shared.tolist(), rest.tolist(), strict=True):
        key = key[:kept] + suffixes[at : at + added]
        at += added
        yield key


def _data_files(body: _Body, base: str) -> list[DataFile]:
    """The table of data files: paths, of which the first ``base`` bytes hold for nodes below too."""
    count = body.number()
    if count > MAX_FILES:
        body.refuse(f"it names {count} data files")
    shared = [0, *body.column(count - 1).tolist()] if count else []
    rest, bases = body.column(count).tolist(), body.column(count).tolist()
    files: list[DataFile] = []
    path, size = b"", 0
    for kept, added, length in zip(shared, rest, bases, strict=True):
        size += kept + added
        if size > MAX_NODE_BYTES:
            body.refuse(f"its paths take more than {MAX_NODE_BYTES:,} bytes")
        if kept > len(path) or kept + added > MAX_KEY_BYTES or length > kept + added:
            body.refuse("a path in its table of data files contradicts itself")
        path = path[:kept] + body.take(added)
        files.append(DataFile(base + _text(path[:length]), _text(path[length:])))
    return files


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


class _Body:
    """The decoded bytes of a node in order, of which no more is in memory than is asked for."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream = stream
        self._where = where
        self._ready = b""

    def refuse(self, what: str) -> NoReturn:
        raise CorruptError(
            f"{self._where} cannot be decoded: {what}; restore the folder from a copy"
        )

    def take(self, nbytes: int) -> bytes:
        """The next ``nbytes`` bytes."""
        parts, left = [self._ready[:nbytes]], nbytes
        self._ready = self._ready[nbytes:]
        while left := left - len(parts[-1]):
            parts.append(self._read(min(left, _BLOCK_BYTES)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def number(self) -> int:
        return int(self.column(1)[0])

    def column(self, count: int) -> Column:
        """The next ``count`` varints."""
        import numpy as np

        found = [np.zeros(0, np.int64)]
        while count > 0:
            numbers = self._some(count)
            found.append(numbers)
            count -= len(numbers)
        return np.concatenate(found)

    def _some(self, count: int) -> Column:
        """As many of the next ``count`` varints as lie in what is read, at least one."""
        import numpy as np

        while True:
            octets = np.frombuffer(self._ready[:_BLOCK_BYTES], np.uint8)
            ends = np.flatnonzero(octets < 0x80)[:count] + 1
            if len(ends):
                break
            if len(self._ready) > _MAX_VARINT_BYTES:
                self.refuse("it has a number of more than 63 bits")
            self._ready += self._read(_BLOCK_BYTES)
        starts = np.concatenate([[0], ends[:-1]])
        sizes = ends - starts
        if int(sizes.max()) > _MAX_VARINT_BYTES:
            self.refuse("it has a number of more than 63 bits")
        numbers = np.zeros(len(ends), np.int64)
        for place in range(int(sizes.max())):
            longer = sizes > place
            septets = octets[starts[longer] + place].astype(np.int64) & 0x7F
            numbers[longer] |= septets << (7 * place)
        self._ready = self._ready[int(ends[-1]) :]
        return numbers

    def check_end(self) -> None:
        if self._ready or self._read(1, may_end=True):
            self.refuse("more bytes follow its last value")

    def _read(self, nbytes: int, *, may_end: bool = False) -> bytes:
        from zstandard import ZstdError

        try:
            data = self._stream.read(nbytes)
        except ZstdError as error:
            self.refuse(f"zstd says {error}")
        if not data and not may_end:
            self.refuse("it ends too early")
        return data
