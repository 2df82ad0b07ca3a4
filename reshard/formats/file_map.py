"""FileMap: the files of a target, before any of its data is known.

A file is a literal, whose bytes are known; a chunk's own file; a file that chunks share, between known bytes and ``Insert``s that
follow from what was stored; or part of a database. ``carry_out`` writes all of them, whatever the format, in a store that
writes in place and in one that takes a file from its beginning to its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.checksums.crc import CRC32C, Crc, crc_of_parts
from reshard.errors import FormatError
from reshard.geometry.grid import Index
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.formats.ocdbt.databases import Databases


class Place(Struct, frozen=True):
    """The place of an encoded target chunk: a file of its own, or a part of a file that it shares.

    Attributes:
        file: path below the target's root.
        offset: of the chunk's first byte in a shared file, which is made in its full size before; None for a file
            of its own, which is made with the chunk.
    """

    file: str
    offset: int | None = None

    @property
    def start(self) -> int:
        """The offset of the chunk's first byte in the file."""
        return self.offset or 0


class ChunkChecksum(Struct, frozen=True):
    """The size and the checksum of a stored chunk of a target, the same at each of its places.

    Attributes:
        name: of the tensor.
        nbytes: of the chunk as it is stored.
        crc32c: of these bytes; of a chunk that ends with its own CRC32C, that is always the same.
    """

    name: str
    index: Index
    nbytes: int
    crc32c: int


class StoredRanges:
    """The chunks that are stored in one shared file so far, with the CRC of each."""

    def __init__(self, crc: Crc) -> None:
        self._crc = crc
        self._parts: dict[int, tuple[int, int]] = {}
        self._starts: list[int] = []
        self._is_sorted = True

    def add(self, offset: int, nbytes: int, value: int) -> None:
        """Adds a chunk; ``value``: its plain CRC."""
        self._parts[offset] = (nbytes, value)
        self._is_sorted = self._is_sorted and (not self._starts or offset > self._starts[-1])
        self._starts.append(offset)

    def crc(self, offset: int, nbytes: int) -> int:
        """The CRC of a range that chunks tile. Raises FormatError for one that they do not."""
        if not self._is_sorted:
            self._starts.sort()
            self._is_sorted = True
        parts, at, end = list[tuple[int, int, int]](), offset, offset + nbytes
        number = bisect_left(self._starts, offset)
        while at < end and number < len(self._starts) and self._starts[number] == at:
            length, value = self._parts[at]
            parts.append((at - offset, length, value))
            at, number = at + length, number + 1
        if at != end:  # a chunk is missing, or one crosses the end
            raise FormatError(
                f"chunks do not tile the {nbytes} bytes at {offset} of a file; this is a defect of the program, please report it"
            )
        return crc_of_parts(self._crc, parts, nbytes)


class Insert(Struct, frozen=True):
    """Bytes of a shared file between its chunks or behind them, which may depend on the chunks before them.

    Attributes:
        make: the bytes, ``nbytes`` of them, from the chunks; it can be pickled.
    """

    offset: int
    nbytes: int
    make: Callable[[StoredRanges], bytes]


class SharedFile(Struct, frozen=True):
    """A file of a target that chunks share; chunks and inserts follow its head without gaps.

    Attributes:
        head: its first bytes.
        nbytes: of the whole file.
        inserts: the bytes between chunks or behind them, by offset.
        crc: of the chunks, as inserts ask for it. CRC32C is known of every chunk; another is taken from the file once it is there.
    """

    head: bytes
    nbytes: int
    inserts: tuple[Insert, ...] = ()
    crc: Crc = CRC32C

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the chunks in it."""
        return self.nbytes - len(self.head) - sum(insert.nbytes for insert in self.inserts)


Finish = Callable[[Location, Mapping[str, str], Iterable[ChunkChecksum]], Mapping[str, bytes]]
"""Writes the files that depend on all of the data: root, digests of tensors by name, and checksums of chunks.

The checksums are of each chunk once, in any order. They are read from the journal, each time anew: a format that does not ask pays
nothing. A save has no journal, and gives none.

It returns the markers, the files that say that all of it is there, by path below the root: the transaction writes them, in that
order, after everything else.
"""


def _no_shared_file(file: str) -> SharedFile:
    raise FormatError(
        f"{file!r} is no file that chunks share; this is a defect of the program, please report it"
    )


class FileMap(Struct, frozen=True, kw_only=True):
    """The files of a target, by path below its root. It keeps nothing for each chunk: there may be millions.

    Attributes:
        places: every place that gets an encoded chunk, by tensor and index; none for a chunk of a database.
        finish: writes the metadata of the tree, and the record with the digests; called once, after everything else.
        names: paths, or folders of them, that a file system must not take for one another.
        folders: the folders that chunks and literals are in, parents first, for stores that have folders.
        literals: files that are known before the data.
        shared: the names of the files that chunks share.
        shared_file: gives a shared file by its name.
        copy: copies files that are taken from elsewhere as they are; it may be called again.
        database: stores chunks that have no places.
    """

    places: Callable[[str, Index], tuple[Place, ...]]
    finish: Finish
    names: Callable[[], Iterable[str]] = tuple
    folders: Callable[[], Iterable[str]] = tuple
    literals: Callable[[], Iterable[tuple[str, bytes]]] = tuple
    shared: Collection[str] = ()
    shared_file: Callable[[str], SharedFile] = _no_shared_file
    copy: Callable[[Location], None] = lambda _: None
    database: Databases | None = None

    def keeps(self, file: str) -> bool:
        """True if a file that an earlier run left may hold chunks of several tasks, so that it stays when a run resumes."""
        return file in self.shared or (self.database is not None and self.database.owns(file))
