"""Carries out a FileMap: makes the files of a target before its chunks are written, and completes them afterwards.

Where a store writes in place, a shared file is made in its full size, chunks go to their places in any order, and its inserts are
written at the end. Elsewhere each shared file is uploaded in order (``engine.output``), inserts among its chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from reshard.checksums.crc import CRC32C, range_crc
from reshard.errors import StorageError
from reshard.formats.file_map import ChunkChecksum, FileMap, SharedFile, StoredRanges
from reshard.storage.calls import each_at_once
from reshard.storage.local.target_checks import refuse_folded
from reshard.storage.location import Location


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
