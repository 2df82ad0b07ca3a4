"""Copies a file of any store to a local file."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from reshard.storage.local import open_new, storage_errors, write_all
from reshard.storage.location import Location

PIECE_BYTES = 1 << 20


def copy_file(source: Location, target: str | Path, version: str = "", what: str = "") -> None:
    """Copies a file, in that version if one is given; nothing is synced.

    Raises StorageError where one of the two refuses, FormatError where the source is not a plain file.
    """
    piece_bytes = max(PIECE_BYTES, source.store.range_bytes)
    path, done = str(target), 0
    with closing(source.open(version, what)) as file:
        fd = open_new(path)
        try:
            while data := file.read(done, piece_bytes):
                write_all(fd, memoryview(data), done, path)
                done += len(data)
            with storage_errors("write", path):
                os.ftruncate(fd, done)  # an interrupted run may have left more
        finally:
            with storage_errors("close", path):
                os.close(fd)
