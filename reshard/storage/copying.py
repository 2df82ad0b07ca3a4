"""Copies a file from any store to any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from reshard.errors import StorageError
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.location import Location, is_in_bucket
from reshard.storage.noting import note

PIECE_BYTES = 1 << 20


def copy_file(
    source: Location, target: Location, status: FileStatus | None = None, what: str = ""
) -> None:
    """Copies a file in the version of its status, which is looked up if it is not given; nothing is synced.

    Raises StorageError where one of the two refuses or the file is gone, FormatError where the source is not a plain file.
    """
    status = status or source.status(what)
    if status is None:
        raise StorageError(
            f"{f'{what}: ' if what else ''}{source} is gone; keep it until it is copied, then run again"
        )
    if can_copy(str(source), str(target), status.nbytes) and (
        version := copied_by_store(source, target, status)
    ):
        note(target, version)
        return
    with closing(source.open(status.version, what)) as file:
        pieces = _pieces(file, max(PIECE_BYTES, source.traits.range_bytes))
        target.write_pieces(pieces, status.nbytes)


def copied_by_store(source: Location, target: Location, status: FileStatus) -> str:
    """Has the store copy a file in this version by itself; the version of the copy, or "" where nothing was copied.

    To be asked where ``can_copy`` says so; no file may be at the target yet.
    """
    from reshard.storage.buckets.copies import copy_within

    return copy_within(source, status, target)


def can_copy(source: str, target: str, nbytes: int) -> bool:
    """Whether one bucket has both places, and a file of ``nbytes`` is worth a copy by the store itself."""
    if not (is_in_bucket(source) and is_in_bucket(target)):
        return False
    from reshard.storage.buckets.copies import is_worth_it

    return is_worth_it(source, target, nbytes)


def is_copied_by_store(source: str, version: str, target: str, nbytes: int) -> bool:
    """Whether ``copied_by_store`` will most likely copy a file in this version."""
    if not can_copy(source, target, nbytes):
        return False
    from reshard.storage.buckets.copies import is_provable

    return is_provable(source, version)


def _pieces(file: OpenFile, nbytes: int) -> Iterator[bytes]:
    done = 0
    while data := file.read(done, nbytes):
        yield data
        done += len(data)
