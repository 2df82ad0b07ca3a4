"""The size of all files below a folder, and the time of the latest write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from reshard.storage.buckets import counts
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore
from reshard.storage.local.files import storage_errors
from reshard.storage.location import Location


class FolderSize(Struct, frozen=True):
    """The size and age of the files below a folder.

    Attributes:
        nbytes: of all files together, as they are stored.
        written_at: the time of the latest write; None if there are no files.
    """

    files: int
    nbytes: int
    written_at: datetime | None


def folder_size(place: Location) -> FolderSize:
    """Looks at every file below a folder; in a bucket in one request for each thousand. Links are not followed.

    Raises StorageError if something cannot be listed.
    """
    store = place.store
    return _sum(
        _objects(store, place) if isinstance(store, BucketStore) else _files(Path(place.path))
    )


def files_size(files: Iterable[Location]) -> FolderSize:
    """The size and age of some files, such as those of a prefix."""
    return _sum(found for file in files for found in _file(file))


def _sum(found: Iterable[tuple[int, datetime]]) -> FolderSize:
    files, nbytes, latest = 0, 0, None
    for size, written_at in found:
        files, nbytes = files + 1, nbytes + size
        latest = written_at if latest is None else max(latest, written_at)
    return FolderSize(files, nbytes, latest)


def _file(file: Location) -> Iterator[tuple[int, datetime]]:
    if isinstance(file.store, BucketStore):
        with bucket_errors("look at", str(file)):
            one = counts.head(file.store.client(file.path), file.path)
            yield one["size"], one["last_modified"].astimezone(UTC)
        return
    with storage_errors("look at", file.path), suppress(FileNotFoundError):
        yield _size_and_time(file.path)


def _size_and_time(path: str) -> tuple[int, datetime]:
    status = os.lstat(path)
    return status.st_size, datetime.fromtimestamp(int(status.st_mtime), UTC)


def _files(folder: Path) -> Iterator[tuple[int, datetime]]:
    with storage_errors("list", folder):
        for below, _, names in os.walk(folder, onerror=_unless_gone):
            for name in names:
                with suppress(FileNotFoundError):  # a concurrent save renames and removes files
                    yield _size_and_time(f"{below}/{name}")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _objects(store: BucketStore, place: Location) -> Iterator[tuple[int, datetime]]:
    with bucket_errors("list", str(place)):
        for page in counts.pages(store.client(place.path), place.path):
            yield from ((one["size"], one["last_modified"].astimezone(UTC)) for one in page)
