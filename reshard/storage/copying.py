"""Copies a file from any store to any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from reshard.errors import StorageError
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.location import Location

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
    with closing(source.open(status.version, what)) as file:
        pieces = _pieces(file, max(PIECE_BYTES, source.store.range_bytes))
        target.write_pieces(pieces, status.nbytes)


def _pieces(file: OpenFile, nbytes: int) -> Iterator[bytes]:
    done = 0
    while data := file.read(done, nbytes):
        yield data
        done += len(data)
