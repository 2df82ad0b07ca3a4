"""The leftovers of an interrupted run to a target and their removal, and the size of all files below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import Record
from reshard.errors import MissingError, StorageError
from reshard.storage.buckets import counts
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore
from reshard.storage.commit_markers import is_left_unfinished
from reshard.storage.local.files import storage_errors
from reshard.storage.local.staging import staging_for
from reshard.storage.location import Location, is_in_hub, locate
from reshard.storage.parts import remove_parts
from reshard.storage.targets import (
    count_uploads,
    has_leftovers,
    is_local,
    lock_target,
    remove_uploads,
    state_of,
)


class Leftovers(Record, frozen=True):
    """The leftovers of an interrupted run.

    Attributes:
        place: the folder that records unfinished work, beside the target or as configured.
        files: number of written files of the target; in a bucket they lie under the target's own name.
        nbytes: of these files.
        uploads: number of unfinished uploads in parts that a killed process left; they are paid for. None if the store does not
            list them (only S3 does), so that a lifecycle rule of the bucket must remove them.
        is_removed: true if all of it is gone now.
    """

    target: str
    place: str
    files: int
    nbytes: int
    uploads: int | None = 0
    is_removed: bool = False


def remove_leftovers(target: str, *, dry_run: bool = False, state: str | None = None) -> Leftovers:
    """Removes the leftovers of an interrupted run to a target; with ``dry_run`` only counts them.

    Raises MissingError if nothing is left, TargetBusyError if a run is writing the target now, and StorageError if
    something cannot be removed. A finished target is not touched.
    """
    place = locate(target)
    if not _is_left(place, state):
        raise MissingError(
            f"nothing is left of an interrupted run to {target}; check the path: it is that of the target, not of the folder beside it"
        )
    sizes = _sizes(place)
    found = Leftovers(str(place), str(state_of(place, state)), len(sizes), sum(sizes), 0)
    if dry_run:
        return replace(found, uploads=count_uploads(place))
    with lock_target(place, unsafe=True, state=state) as transaction:
        remove_parts(place, state)
        uploads = remove_uploads(place)
        transaction.abort()
    if _is_left(place, state):
        raise StorageError(
            f"not all that an interrupted run left of {target} could be removed; see that this user may delete {found.place} and what is "
            "below it, and run again"
        )
    return replace(found, uploads=uploads, is_removed=True)


def _is_left(target: Location, state: str | None) -> bool:
    return has_leftovers(target, state=state) or is_left_unfinished(target)


def _sizes(target: Location) -> list[int]:
    """The size of each written file of an unfinished target."""
    if is_local(target):
        root = locate(staging_for(Path(target.path)).folder)
    elif is_left_unfinished(target):
        root = target.view()
    else:
        return []  # a finished target; its run was interrupted before it removed its records
    files = root.files() if root.is_folder() else ()
    # On a disk without journals and locks.
    found = (
        (root / file).status() for file in files if not is_local(target) or "checkpoint" in file
    )
    return [status.nbytes for status in found if status is not None]


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

    On the hub files have no times. Raises StorageError if something cannot be listed.
    """
    store = place.store
    if is_in_hub(str(place)):
        found = [status.nbytes for file in place.files() if (status := (place / file).status())]
        return FolderSize(len(found), sum(found), None)
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
