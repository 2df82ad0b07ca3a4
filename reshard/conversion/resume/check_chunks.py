"""Decides which journaled chunks can be trusted after a restart.

While the same kernel runs, everything that was written before a line of the journal is in the page cache or on the
device. So a chunk is trusted whose file has its size and did not change since the last line was written, and one in a
shared file that has no hole there. A file of one chunk that changed since is read, as all are after a reboot. After a reboot,
or on another host, it may be lost, short or zeros: a closed chunk is read at each of its places, and trusted if it has
the CRC32C at its end and the one in the journal, where there is one. A chunk that is not closed, or has no checksum, is
not trusted then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial

from reshard.checksums.crc import READ_BYTES, range_crc32c
from reshard.conversion.resume.journal import (
    ChunkKey,
    Journaled,
    JournaledChunk,
    missing_in_bucket,
)
from reshard.engine.executor import run_tasks
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.errors import StorageError
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.file_map import Place
from reshard.planning.plans import Plan
from reshard.storage.local.files import storage_error, storage_errors
from reshard.storage.local.store import LocalFile
from reshard.storage.location import Location
from reshard.storage.target import FileRange, look


def missing_in_files(journaled: Journaled, root: Location) -> set[ChunkKey]:
    """The chunks whose files are gone or have another size or version, or a hole: the losses that need no reboot.

    ``journaled`` gives all chunks anew with each call. To be called before the files are prepared, which makes lost shared
    files anew.
    """
    if root.traits.has_versions:
        return missing_in_bucket(journaled, root)
    is_stored = look(root)
    return {
        c.key
        for c in journaled()
        if not all(_is_there(c, place, root.path, is_stored) for place in c.places)
    }


def _is_there(
    recorded: JournaledChunk, place: Place, root: str, is_stored: Callable[[FileRange], bool]
) -> bool:
    wanted = FileRange(place.file, place.offset, recorded.stored_bytes)
    if place.offset is None:
        try:
            return is_stored(wanted)
        except StorageError:  # it is written again
            return False
    if recorded.stored_bytes is not None:
        return is_stored(wanted)
    try:  # a hole is not written yet
        return os.lstat(f"{root}/{place.file}").st_size >= place.offset + recorded.full_bytes
    except OSError:
        return False


def changed_since(
    chunks: Iterable[JournaledChunk], root: str, recorded_ns: int | None
) -> Iterator[JournaledChunk]:
    """The closed chunks in files of their own that changed after they were recorded: another program wrote there.

    The time of change (ctime) counts, which no program sets. A shared file is no sign: tasks that were never recorded wrote
    to it too.
    """
    if recorded_ns is None:
        return
    for recorded in chunks:
        paths = [f"{root}/{place.file}" for place in recorded.places if place.offset is None]
        if recorded.stored_bytes is not None and any(_changed_ns(p) > recorded_ns for p in paths):
            yield recorded


def _changed_ns(path: str) -> int:
    """The time when a file changed (ns); 0 where it is gone, which ``missing_in_files`` finds."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def missing_in_database(
    chunks: Iterable[JournaledChunk], plan: Plan, output: TargetOutput
) -> set[ChunkKey]:
    """The chunks that a database should hold and does not find; to be called once it is open."""
    database = output.files.database
    return {
        (number, index)
        for number, index in (c.key for c in chunks if not c.places)
        if database is None or not database.holds(plan.tensors[number].name, index)
    }


def damaged(
    chunks: Iterable[JournaledChunk],
    plan: Plan,
    root: str,
    progress: Callable[[Progress], None] | None = None,
) -> set[ChunkKey]:
    """The chunks that are not closed, cannot be checked, or do not read back as written."""
    listed = list(chunks)
    total = sum(c.stored_bytes or 0 for c in listed)
    check = partial(_checked, root=root)
    bad: set[ChunkKey] = set()
    done = 0
    ended = run_tasks(listed, check, lambda _: READ_BYTES, plan.max_memory, plan.workers)
    with closing(ended):
        for number, (recorded, is_good) in enumerate(ended, 1):
            done += recorded.stored_bytes or 0
            if not is_good:
                bad.add(recorded.key)
            if progress is not None:
                name = plan.tensors[recorded.tensor].name
                progress(Progress(done, total, number, len(listed), name, "checking"))
    return bad


def _checked(recorded: JournaledChunk, root: str) -> tuple[JournaledChunk, bool]:
    is_known = recorded.has_trailer or recorded.crc32c is not None
    if recorded.stored_bytes is None or not recorded.places or not is_known:
        return recorded, False
    return recorded, all(_reads_back(recorded, place, root) for place in recorded.places)


def _reads_back(recorded: JournaledChunk, place: Place, root: str) -> bool:
    trailer_bytes = TRAILER_BYTES if recorded.has_trailer else 0
    try:
        found = _read(f"{root}/{place.file}", place, recorded.stored_bytes or 0, trailer_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if found is None:
        return False
    crc32c, trailer = found
    is_ended = not recorded.has_trailer or trailer == crc32c.to_bytes(TRAILER_BYTES, "little")
    return is_ended and recorded.crc32c in (None, crc32c)


def _read(
    path: str, place: Place, stored_bytes: int, trailer_bytes: int
) -> tuple[int, bytes] | None:
    """CRC32C of the chunk's bytes, and the trailer after them; None where the file has another size.

    FileNotFoundError where it is gone; StorageError where it cannot be read.
    """
    fd = _opened(path)
    try:
        with storage_errors("read", path):
            if place.offset is None and os.fstat(fd).st_size != stored_bytes:
                return None
            nbytes = stored_bytes - trailer_bytes
            file = LocalFile(fd, path)
            crc = range_crc32c(file.read, place.start, nbytes)
            return None if crc is None else (crc, file.read(place.start + nbytes, trailer_bytes))
    finally:
        os.close(fd)


def _opened(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise storage_error("read", path, error) from error
