"""FileMap: the files of a target, known before any of its data; they are made before its chunks are written, and completed afterwards.

A file is a literal, whose bytes are known; a chunk's own file; a file that chunks share, between known bytes and ``Insert``s that
follow from what was stored; or part of a database. All of them are made and completed here, whatever the format.

Where a store writes in place, a shared file is made in its full size, chunks go to their places in any order, and its inserts are
written at the end. Elsewhere each shared file is uploaded in order (``engine.output``), inserts among its chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.checksums.crc import CRC32C, Crc, crc_of_parts, range_crc
from reshard.errors import FormatError, StorageError
from reshard.geometry.grid import Index
from reshard.storage.calls import each_at_once
from reshard.storage.local.target_checks import refuse_folded
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


def prepare_files(files: FileMap, root: Location) -> None:
    """Makes the folders, the literals and the shared files; called again when a run resumes: bytes of chunks stay.

    Raises StorageError where the store refuses, and for names that its file system takes for one another.
    """
    root.make_folder()
    refuse_folded(root, files.names())
    root.make_folders(files.folders())
    if files.database is not None:
        files.database.open(root)

    def write(item: tuple[str, bytes]) -> None:
        path, data = item
        (root / path).write(data)

    for _ in each_at_once(root.store, write, files.literals()):
        pass
    for name in files.shared:
        _prepare_shared(root / name, files.shared_file(name))
    files.copy(root)


def _prepare_shared(place: Location, file: SharedFile) -> None:
    is_made = place.write_ranges([(0, file.head)], file.nbytes)
    if not is_made and not file.chunk_bytes:  # no chunk will begin it
        nothing = StoredRanges(file.crc)
        place.write(file.head + b"".join(insert.make(nothing) for insert in file.inserts))


def finish_files(
    files: FileMap, root: Location, digests: Mapping[str, str], checksums: Iterable[ChunkChecksum]
) -> Mapping[str, bytes]:
    """Completes the files once every chunk is stored; the markers, which the transaction writes last.

    Arguments as for ``file_map.Finish``. Raises StorageError where the store refuses.
    """
    _write_inserts(files, root, checksums)
    if files.database is not None:
        files.database.close()
    return files.finish(root, digests, checksums)


def _write_inserts(files: FileMap, root: Location, checksums: Iterable[ChunkChecksum]) -> None:
    """Writes the bytes between chunks, which depend on all of them; in a bucket they were sent with the chunks."""
    shared = {name: file for name in files.shared if (file := files.shared_file(name)).inserts}
    ranges: dict[str, StoredRanges] = {}

    def inserts(name: str) -> Iterator[tuple[int, bytes]]:
        if not ranges:  # once, and only if they are asked for: bytes may be read again
            ranges.update(_stored_ranges(files, shared, root, checksums))
        for insert in shared[name].inserts:
            yield insert.offset, insert.make(ranges[name])

    for name in shared:
        (root / name).write_ranges(inserts(name))


def _stored_ranges(
    files: FileMap,
    shared: Mapping[str, SharedFile],
    root: Location,
    checksums: Iterable[ChunkChecksum],
) -> dict[str, StoredRanges]:
    """The chunks of each shared file."""
    found = {name: StoredRanges(file.crc) for name, file in shared.items()}
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for chunk in checksums:
        for place in files.places(chunk.name, chunk.index):
            if place.file not in shared:
                continue
            if shared[place.file].crc == CRC32C:
                found[place.file].add(place.start, chunk.nbytes, chunk.crc32c)
            else:
                by_file[place.file].append((place.start, chunk.nbytes))
    for name, parts in by_file.items():
        with closing((root / name).open()) as file:
            for offset, nbytes in sorted(parts):
                value = range_crc(shared[name].crc, file.read, offset, nbytes)
                if value is None:
                    raise StorageError(
                        f"{root / name} should have {nbytes} bytes at {offset}, but ends before; nothing was published; leave that "
                        "folder alone, and run again"
                    )
                found[name].add(offset, nbytes, value)
    return found
