"""Copies: a file from any store to any other, and a range of a local file whose blocks another one shares."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from reshard.checksums.crc import range_crc32c
from reshard.errors import StorageError
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.local.files import OpenFiles, close_after_reading, read_at
from reshard.storage.location import Location, is_in_bucket
from reshard.storage.target import TargetPlace, record_version, recording_versions

PIECE_BYTES = 1 << 20

COPIES_AT_ONCE = 16
"""A store answers a copy after some 100 ms, so that many are asked for side by side."""

CLONE_BYTES = 1 << 20
"""A smaller range is read and written faster than its blocks are found and shared."""

_FICLONERANGE = 0x4020940D
"""ioctl_ficlonerange(2): the descriptor of the source, an offset in it, a number of bytes, an offset in the target."""

_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def copy_file(
    source: Location, target: Location, status: FileStatus | None = None, what: str = ""
) -> None:
    """Copies a file in the version of its status, which is looked up if it is not given; nothing is synced.

    Raises StorageError if one of the two refuses or the file is gone, FormatError if the source is not a plain file.
    """
    status = status or source.status(what)
    if status is None:
        raise StorageError(
            f"{f'{what}: ' if what else ''}{source} is gone; keep it until it is copied, then run again"
        )
    if can_copy(str(source), str(target), status.nbytes) and (
        version := copied_by_store(source, target, status)
    ):
        record_version(target, version)
        return
    with closing(source.open(status.version, what)) as file:
        pieces = _pieces(file, source.read_bytes(PIECE_BYTES))
        target.write_pieces(pieces, status.nbytes)


def copied_files(source: Location, target: Location, files: Iterable[str]) -> dict[str, str]:
    """Copies files from one folder to another, many at once; returns the version of each copy, by its path from there."""
    versions: dict[str, str] = {}
    recording, listed = recording_versions(target, versions), list(files)
    with ThreadPoolExecutor(COPIES_AT_ONCE, "reshard.copy") as threads:
        for _ in threads.map(lambda file: copy_file(source / file, recording / file), listed):
            pass
    return {file: versions[(target / file).path] for file in listed}


def copied_by_store(source: Location, target: Location, status: FileStatus) -> str:
    """Has the store copy a file in this version by itself; returns the version of the copy, or "" if nothing was copied.

    To be called if ``can_copy`` is true; no file may be at the target yet.
    """
    from reshard.storage.buckets.store import copy_within

    return copy_within(source, status, target)


def can_copy(source: str, target: str, nbytes: int) -> bool:
    """True if one bucket has both places, and a file of ``nbytes`` is worth a copy by the store itself."""
    if not (is_in_bucket(source) and is_in_bucket(target)):
        return False
    from reshard.storage.buckets.store import is_worth_it

    return is_worth_it(source, target, nbytes)


def is_copied_by_store(source: str, version: str, target: str, nbytes: int) -> bool:
    """True if ``copied_by_store`` will most likely copy a file in this version."""
    if not can_copy(source, target, nbytes):
        return False
    from reshard.storage.buckets.store import is_provable

    return is_provable(source, version)


def cloned(source: str, offset: int, nbytes: int, fd: int, path: str, at: int = 0) -> int | None:
    """Shares the blocks of ``nbytes`` of another file, from ``offset``, with the open local file ``fd``, from ``at``.

    File systems that can do it (XFS, Btrfs) then write nothing. Others refuse at once; there ``copy_file_range`` would copy within
    the kernel, but the bytes must still be read for their CRC32C, which took as long as reading and writing them.

    Returns the CRC32C of the bytes, read from the new file at ``path``, since another process may have written to the source
    meanwhile. None if it was not done; the caller then reads and writes the bytes, and gets any error.
    """
    if not share_blocks(source, offset, nbytes, fd, at):
        return None
    try:
        made = os.open(path, _READING | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return range_crc32c(lambda start, size: read_at(made, size, start), at, nbytes)
    except OSError:
        return None
    finally:
        close_after_reading(made)


def share_with_target(
    source: str,
    offset: int,
    nbytes: int,
    place: TargetPlace,
    file: str,
    at: int,
    *,
    is_shared: bool,
) -> bool:
    """Gives a file of a target, from ``at``, the blocks of another file, as ``cloned`` does; False if it was not done.

    ``is_shared``: chunks share the target's file, which must exist unless tasks make all files.
    """
    if not place.in_place:
        return False
    with OpenFiles(place.root, 1, makes_files=place.makes_files) as files:
        fd = files.fd(file, is_shared=is_shared)
        return share_blocks(source, offset, nbytes, fd, at)


def share_blocks(source: str, offset: int, nbytes: int, fd: int, at: int = 0) -> bool:
    """Gives the open local file ``fd`` the blocks of another file, as ``cloned`` does; False if it was not done.

    File systems share whole blocks only: a block must begin at ``offset`` and ``at``, and end with the range, or both files must.
    """
    if nbytes < CLONE_BYTES or is_in_bucket(source):
        return False
    try:
        source_fd = os.open(source, _READING)
    except OSError:
        return False
    try:
        fcntl.ioctl(fd, _FICLONERANGE, struct.pack("=qQQQ", source_fd, offset, nbytes, at))
    except OSError:
        return False
    finally:
        close_after_reading(source_fd)
    return True


def _pieces(file: OpenFile, nbytes: int) -> Iterator[bytes]:
    done = 0
    while data := file.read(done, nbytes):
        yield data
        done += len(data)
