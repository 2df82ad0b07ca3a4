"""The location of each value of an OCDBT database, found without reading values.

A database is a manifest that names the root of a B-tree of nodes in data files
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html). An entry of an inner node has the prefix of the
keys below it, which the keys of a leaf omit. Small values are in the node itself. Nodes are decoded in a stream,
since TensorStore's dump of a node of 200,000 keys takes 250 MiB.

With Orbax each process writes a database of its own (``ocdbt.process_N``). At the end their trees, but not their
values, are merged into one manifest. If that manifest is missing, the union of the processes' databases is the index.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.contents import Extent
from reshard.formats.limits import MAX_NODES
from reshard.formats.ocdbt.manifest import MANIFEST, read_root
from reshard.formats.ocdbt.node import Node, NodeEntry
from reshard.formats.zarr.values import read_extent
from reshard.storage.base import FileStatus
from reshard.storage.location import Location

PROCESS_PREFIX = "ocdbt.process_"

_ENTRY_BYTES = 40
"""Memory of a key besides its text: four numbers, in arrays that grow by a sixteenth (measured)."""

MAX_INDEX_BYTES = 1 << 31
"""Most bytes of keys and distinct small values of an index; ten million chunks take a quarter of it."""

_MAX_OFFSET = 1 << 62

_INLINE = -1
"""Stands for no file: the value is in the index itself, and its offset is its number there."""

_ValuePlace = tuple[str, int, int] | bytes
"""The location of a value: file, offset and length, or the value itself."""


_WHOLE_NODE_BYTES = 256 << 10
"""Nodes up to this size are read at once; of larger ones, which may be nested, only a part is in memory."""


def find_databases(folder: Location) -> list[Location]:
    """The databases of an item: the merged one if it is there, then each process's."""
    names = [e.name for e in folder.entries() if e.name.startswith(PROCESS_PREFIX)]
    found = [folder, *(folder / name for name in names)]
    return [database for database in found if (database / MANIFEST).exists()]


class OcdbtIndex:
    """An index over one or several databases: some 40 bytes per value besides its key; look-ups are bisections.

    If several databases have the same key, the first counts; all values must have the same size. Each process writes
    its own copy of an array's metadata.
    """

    def __init__(self, databases: Sequence[Location]) -> None:
        self.databases = tuple(databases)
        self._keys = _Keys()
        self._files: list[str] = []
        self._file_of, self._offsets, self._lengths = array("i"), array("Q"), array("Q")
        self._inline: list[bytes] = []
        self._sizes = FileSizes()
        found = [_read_database(d, self._sizes) for d in databases]
        self._pack(_union(found, str(databases[0].parent)))

    def _pack(self, entries: Iterable[tuple[bytes, _ValuePlace]]) -> None:
        """Keep sorted entries in as little memory as Python allows."""
        numbers: dict[str, int] = {}
        shared: dict[bytes, int] = {}  # layers have equal metadata, which is kept once
        last, size = b"", 0
        for key, place in entries:
            if key <= last and len(self):
                raise CorruptError(
                    f"{self.databases[0]}: the key {shorten(key)} follows {shorten(last)}, "
                    "but a database's keys are sorted; restore the folder from a copy"
                )
            if isinstance(place, bytes):
                size += 0 if place in shared else len(place)
                file, offset, length = _INLINE, shared.setdefault(place, len(shared)), len(place)
            else:
                path, offset, length = place
                file = numbers.setdefault(path, len(numbers))
            self._file_of.append(file)
            self._offsets.append(offset)
            self._lengths.append(length)
            self._keys.append(key)
            last, size = key, size + len(key)
            if size > MAX_INDEX_BYTES:
                raise FormatError(
                    f"{self.databases[0]}: keys and small values of more than {MAX_INDEX_BYTES:,} bytes "
                    "are not read; this checkpoint cannot be handled safely"
                )
        self._files, self._inline = list(numbers), list(shared)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def metadata_bytes(self) -> int:
        """Memory of the index."""
        return _ENTRY_BYTES * len(self) + self._keys.nbytes + sum(map(len, self._inline))

    def below(self, prefix: str) -> Iterator[str]:
        """The rest of each key that begins with ``prefix``, in order."""
        begin = prefix.encode("utf-8", "surrogatepass")
        for i in range(bisect_left(self._keys, begin), len(self._keys)):
            key = self._keys[i]
            if not key.startswith(begin):
                return
            yield key[len(begin) :].decode("utf-8", "replace")

    def find(self, key: str, what: str) -> Extent | None:
        """The value's extent, checked against the size of its file."""
        wanted = key.encode("utf-8", "surrogatepass")
        i = bisect_left(self._keys, wanted)
        if i == len(self._keys) or self._keys[i] != wanted:
            return None
        file, offset, length = self._file_of[i], self._offsets[i], self._lengths[i]
        if file == _INLINE:
            return Extent(str(self.databases[0] / MANIFEST), 0, length, self._inline[offset])
        return self._sizes.extent(self._files[file], offset, length, what)


class _Keys:
    """Sorted keys, concatenated in one buffer."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q")

    def append(self, key: bytes) -> None:
        self._text += key
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> bytes:
        start = self._ends[i - 1] if i else 0
        return bytes(self._text[start : self._ends[i]])

    @property
    def nbytes(self) -> int:
        return len(self._text)


def _union(
    databases: Sequence[Iterator[tuple[bytes, _ValuePlace]]], where: str
) -> Iterator[tuple[bytes, _ValuePlace]]:
    """The sorted entries of several databases; if a key is repeated, the first database counts."""
    if len(databases) == 1:
        yield from databases[0]
        return
    last: tuple[bytes, _ValuePlace] | None = None
    for entry in heapq.merge(*databases, key=itemgetter(0)):
        if last is None or last[0] != entry[0]:
            last = entry
            yield entry
        elif _length(last[1]) != _length(entry[1]):
            raise CorruptError(
                f"{where}: the key {shorten(entry[0])} is in several databases with "
                f"different values ({_length(last[1])} and {_length(entry[1])} bytes); expected one "
                "writer of each chunk"
            )


def _length(place: _ValuePlace) -> int:
    return len(place) if isinstance(place, bytes) else place[2]


class _Place(Struct, frozen=True):
    """The location of a node, and the prefix that its keys omit.

    Attributes:
        path: below the database; paths in the node are relative to its first part, ``base``.
    """

    base: str
    path: str
    offset: int
    length: int
    prefix: bytes = b""

    def __str__(self) -> str:
        return f"node {self.path}:{self.offset}:{self.length}"


def _read_database(database: Location, sizes: FileSizes) -> Iterator[tuple[bytes, _ValuePlace]]:
    """Every key of one database with its place, in the tree's order."""
    root = read_root(database)
    if root is None:
        return
    place = _Place(root.base, root.path, root.offset, root.length)
    found = 0
    for key, where in _Walk(database, sizes).entries(place, None):
        found += 1
        if found > root.keys:
            break
        yield key, where
    if found != root.keys:
        raise CorruptError(
            f"{database / MANIFEST} counts {root.keys:,} keys, but its tree has {found:,}{' or more' * (found > root.keys)}; "
            "restore the folder from a copy"
        )


class _Walk:
    """A walk over the tree of one database, in the order of its keys."""

    def __init__(self, database: Location, sizes: FileSizes) -> None:
        self._database = database
        self._sizes = sizes
        self._files: dict[str, str] = {}
        self._read_bytes: dict[str, int] = {}
        self._seen: set[tuple[str, int]] = set()

    def entries(self, place: _Place, height: int | None) -> Iterator[tuple[bytes, _ValuePlace]]:
        """The entries below a node, which must have this height (None: any)."""
        node = self._open(place)
        if height is not None and node.height != height:
            node.close()
            raise CorruptError(
                f"{self._database} ({place}) has height {node.height}, but {height} was expected; the "
                "database contradicts itself"
            )
        for entry in node.entries():
            if node.height:
                yield from self.entries(self._child(place, entry), node.height - 1)
            else:
                yield place.prefix + entry.key, self._value(place, entry)

    def _open(self, place: _Place) -> Node:
        where = f"{self._database} ({place})"
        at = (place.path, place.offset)
        if at in self._seen or len(self._seen) > MAX_NODES:
            raise CorruptError(
                f"{where} occurs twice in the tree, or the tree has more than {MAX_NODES:,} nodes; the "
                "database contradicts itself"
            )
        self._seen.add(at)
        file = self._file(place.path, place)
        extent = self._sizes.extent(file, place.offset, place.length, where)
        self._refuse_overlap(extent, where)
        if extent.length <= _WHOLE_NODE_BYTES:
            extent = Extent(file, place.offset, place.length, read_extent(extent, where))
        return Node(extent, place.base, where)

    def _refuse_overlap(self, extent: Extent, where: str) -> None:
        """Refuses overlapping nodes, which would take time quadratic in the size of their file."""
        total = self._read_bytes[extent.path] = self._read_bytes.get(extent.path, 0) + extent.length
        if total > self._sizes.size(extent.path, where):
            raise CorruptError(
                f"{where} overlaps with other nodes in {extent.path}; the database contradicts itself"
            )

    def _child(self, parent: _Place, entry: NodeEntry) -> _Place:
        file = entry.file
        if file is None:
            raise CorruptError(f"{self._database} ({parent}) has a child without a place")
        prefix = parent.prefix + entry.key
        return _Place(file.base, file.path, entry.offset, entry.length, prefix)

    def _value(self, place: _Place, entry: NodeEntry) -> _ValuePlace:
        if entry.file is None:
            return entry.inline
        if entry.offset + entry.length > _MAX_OFFSET:
            raise CorruptError(
                f"{self._database} ({place}): the value {shorten(entry.key)} is beyond the end of any file"
            )
        return self._file(entry.file.path, place), entry.offset, entry.length

    def _file(self, path: str, place: _Place) -> str:
        """One shared text for each file."""
        if path not in self._files:
            if "\0" in path or any(step in ("", ".", "..") for step in path.split("/")):
                raise CorruptError(
                    f"{self._database} ({place}): {shorten(path)} should name a data file below the "
                    "database's folder, but does not"
                )
            self._files[path] = self._sizes.add(self._database / path)
        return self._files[path]


class FileSizes:
    """Files by the text of their location; safe from any thread, since a second look-up does no harm."""

    def __init__(self) -> None:
        self._files: dict[str, Location] = {}
        self._found: dict[str, FileStatus] = {}

    def add(self, file: Location) -> str:
        """Adds a file and returns its text. Its size is looked up when something in it is first used."""
        path = str(file)
        self._files[path] = file
        return path

    def extent(self, path: str, offset: int, length: int, what: str) -> Extent:
        """A part of an added file; CorruptError, naming ``what``, if the file ends before."""
        found = self._status(path, what)
        if offset + length > found.nbytes:
            raise CorruptError(
                f"{what}: truncated: expected {length:,} bytes from offset {offset:,} of "
                f"{path}, which has only {found.nbytes:,}; restore the file from a copy"
            )
        return Extent(path, offset, length, version=found.version)

    def size(self, path: str, what: str) -> int:
        """The size of an added file; CorruptError, naming ``what``, if there is no such plain file."""
        return self._status(path, what).nbytes

    def _status(self, path: str, what: str) -> FileStatus:
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = _look_up(self._files[path], what)
        return found


def _look_up(file: Location, what: str) -> FileStatus:
    found = file.status(what)
    if found is None or found.kind != "file":
        state = "is missing" if found is None else "is not a plain file"
        raise CorruptError(f"{what}: the data file {file} {state}; restore it from a copy")
    return found
