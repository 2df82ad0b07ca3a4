"""The manifest of an OCDBT database, which locates the root of its newest tree.

It is a block (``ocdbt_block``) with the magic 0x0cdb3a2a in the file ``manifest.ocdbt``, and the body
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html, manifest format)::

    UUID (16 bytes), kind, bytes of an inline value, bytes of a node, arity (1 byte),
    compression (0 none, 1 zstd, followed by 4 bytes of its level)
    table of data files, number of versions, and of each version
    generation, height, data file, offset, length, keys, bytes of the tree, bytes of values
    and 8 bytes of time; then nodes of older versions

A database of the kind 1 keeps its versions in numbered files, which Orbax does not write. Those are left to
TensorStore; for all others it is not imported, which saves a tenth of a second.

The common format of manifests and nodes of OCDBT databases: header, zstd, checksum, numbers, files.

A block is (https://google.github.io/tensorstore/kvstore/ocdbt/index.html, storage format)::

    magic (big-endian), length (8 bytes), version 0, compression (0 none, 1 zstd)
    body, with the table of data files in it
    CRC32C of the whole block

Numbers are varints unless noted otherwise, stored column by column.
"""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.codecs.source import TRAILER_BYTES, Source
from reshard.formats.codecs.tensorstore import tensorstore
from reshard.formats.contents import Extent
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.limits import MAX_MANIFEST_BYTES, MAX_NODE_BYTES
from reshard.formats.safe_json import expect, read_bytes
from reshard.storage.location import Location

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[np.int64]

MAX_KEY_BYTES = 1 << 16
MAX_FILES = 1 << 20
MAX_WINDOW_BYTES = 1 << 27
"""zstd's largest window; only the filled part of a window takes memory."""

_HEADER = struct.Struct(">I8sBB")
_BLOCK_BYTES = 64 << 10
READ_AHEAD_BYTES = 1 << 20
"""Bytes of a request where requests take long: a block is read in one, or a few."""

_MAX_VARINT_BYTES = 10
"""Numbers below 2^64; those from 2^63 on only mean "missing"."""


class IndexBlock:
    """An open block in a file; its content is read from ``body`` in order.

    Args:
        magic: its first four bytes.
        kind: its expected kind, for messages.
        where: names database and block in messages.

    Raises CorruptError for anything that contradicts the format, StorageError if the file cannot be read.
    """

    def __init__(self, extent: Extent, magic: int, kind: str, where: str) -> None:
        self._where = where
        if extent.length < _HEADER.size + TRAILER_BYTES:
            raise self._is_none(kind)
        self._source = Source(extent, where, True, READ_AHEAD_BYTES)
        try:
            self.body = Body(self._open_body(extent, magic, kind), where)
        except BaseException:
            self.close()
            raise

    def _open_body(self, extent: Extent, magic: int, kind: str) -> IO[bytes]:
        found, stored, version, compression = _HEADER.unpack(self._source.read(_HEADER.size))
        if found != magic:
            raise self._is_none(kind)
        length = int.from_bytes(stored, "little")
        if length != extent.length or version != 0 or compression not in (0, 1):
            raise CorruptError(
                f"{self._where} says that it has {length:,} bytes (stored are {extent.length:,}), format "
                f"{version} (0 is known) and compression {compression} (0 and 1 are known); restore the "
                "folder from a copy"
            )
        if compression == 0:
            return self._source  # type: ignore[return-value] # only read is called
        from zstandard import ZstdDecompressor

        decoder = ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return decoder.stream_reader(self._source, read_size=_BLOCK_BYTES)  # type: ignore[arg-type] # as above

    def _is_none(self, kind: str) -> CorruptError:
        return CorruptError(f"{self._where} is not a {kind}; restore the folder from a copy")

    def check(self) -> None:
        """Checks the CRC32C, for which it reads the rest of the block."""
        self._source.read_rest()
        self._source.check_trailer()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._source.close()


class DataFile(Struct, frozen=True):
    """A file that a node names, below the database; its base path applies also to the nodes in the file."""

    base: str
    relative: str

    @property
    def path(self) -> str:
        return self.base + self.relative


def data_files(body: Body, base: str) -> list[DataFile]:
    """The table of data files: the first bytes of each path are the base path of the nodes in that file."""
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


class Body:
    """The decoded bytes of a block in order; only the requested bytes are in memory."""

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
        numbers = self.column_or_missing(count)
        if count and int(numbers.min()) < 0:
            self.refuse("it has a number of more than 63 bits")
        return numbers

    def column_or_missing(self, count: int) -> Column:
        """The next ``count`` varints; those that do not fit 63 bits are below 0."""
        import numpy as np

        found = [np.zeros(0, np.int64)]
        while count > 0:
            numbers = self._some(count)
            found.append(numbers)
            count -= len(numbers)
        return np.concatenate(found)

    def _some(self, count: int) -> Column:
        """The part of the next ``count`` varints that is in memory, at least one."""
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
        longest = sizes == _MAX_VARINT_BYTES
        if int(sizes.max()) > _MAX_VARINT_BYTES or (octets[ends[longest] - 1] > 1).any():
            self.refuse("it has a number of more than 64 bits")
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


MANIFEST = "manifest.ocdbt"

MAX_VERSIONS = 1 << 16
"""Versions in a manifest itself; beyond 16, TensorStore moves older ones into nodes."""

_MAGIC = 0x0CDB3A2A
_UUID_BYTES = 16
_LEVEL_BYTES = 4
_SINGLE, _NUMBERED = 0, 1


class Root(Struct, frozen=True):
    """The location of a tree's root.

    Attributes:
        base, path: of its file, below the database; paths in the node are relative to ``base``.
        keys: the number of keys in the tree.
    """

    base: str
    path: str
    offset: int
    length: int
    keys: int


def read_root(database: Location) -> Root | None:
    """The root of the newest version; None for an empty database.

    Raises CorruptError or FormatError for a manifest that cannot be decoded.
    """
    where = str(database / MANIFEST)
    data = read_bytes(database / MANIFEST, MAX_MANIFEST_BYTES)
    refuse_stand_in(data[:START_BYTES], where)
    extent = Extent(where, 0, len(data), data)
    block = IndexBlock(extent, _MAGIC, "manifest of a database", where)
    try:
        kind = _kind(block.body)
        root = _newest(block.body, where) if kind == _SINGLE else None
        block.check()
    finally:
        block.close()
    return _dumped_root(database, where) if kind == _NUMBERED else root


def _kind(body: Body) -> int:
    """Reads the fields before the table of data files; returns the kind of the manifest."""
    body.take(_UUID_BYTES)
    kind = body.number()
    body.column(2)
    body.take(1)
    if body.number():
        body.take(_LEVEL_BYTES)
    if kind not in (_SINGLE, _NUMBERED):
        body.refuse(f"its kind is {kind} (0 and 1 are known)")
    return kind


def _newest(body: Body, where: str) -> Root | None:
    files = data_files(body, "")
    count = body.number()
    if not 0 < count <= MAX_VERSIONS:
        if not count:
            raise FormatError(f"{where} names no version of its database; expected at least one")
        body.refuse(f"it has {count} versions")
    body.column(2 * count)  # generations and heights
    numbers = body.column(count)
    offsets, lengths = body.column_or_missing(count), body.column_or_missing(count)
    keys = body.column(count)
    if offsets[-1] < 0 and lengths[-1] < 0:
        return None
    if offsets[-1] < 0 or lengths[-1] < 0 or numbers[-1] >= len(files):
        body.refuse("its newest version has no place")
    file = files[int(numbers[-1])]
    return Root(file.base, file.path, int(offsets[-1]), int(lengths[-1]), int(keys[-1]))


def _dumped_root(database: Location, where: str) -> Root | None:
    """Parses TensorStore's text: ``btreenode:<base path>:<relative path>:<offset>:<length>``."""
    manifest = expect(_dumped_manifest(database, where), dict, "the manifest", where)
    versions = expect(manifest.get("versions"), list, "versions", where)
    if not versions:
        raise FormatError(f"{where} names no version of its database; expected at least one")
    root = expect(versions[-1].get("root"), dict, "the root", where)
    if "location" not in root:
        return None
    keys = expect(root.get("statistics", {}).get("num_keys", 0), int, "num_keys", where)
    _, base, relative, offset, length = expect(
        root["location"], str, "the root's location", where
    ).split(":")
    return Root(unquote(base), unquote(base + relative), int(offset), int(length), keys)


def _dumped_manifest(database: Location, where: str) -> Any:
    """The manifest as TensorStore dumps it, from copies in memory: by itself it would wait for a pipe, and read files of any size."""
    ts = tensorstore(f"read {where}")
    copies = ts.KvStore.open({"driver": "memory"}, context=ts.Context()).result()
    names = [entry.name for entry in database.entries() if entry.name.startswith("manifest")]
    nbytes = 0
    for name in names:
        data = read_bytes(database / name, MAX_MANIFEST_BYTES)
        nbytes += len(data)
        if nbytes > MAX_MANIFEST_BYTES:
            raise FormatError(
                f"{where} and the numbered ones beside it have more than the {MAX_MANIFEST_BYTES:,} bytes that are read; "
                "let Orbax write the checkpoint anew"
            )
        copies.write(name, data).result()
    try:
        return ts.ocdbt.dump(copies).result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise CorruptError(
            f"{where} cannot be decoded: {str(error).splitlines()[0]}; restore the folder from a copy"
        ) from error
