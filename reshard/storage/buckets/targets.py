"""Targets in buckets: their check before a run, a stamp of a finished one, and its removal.

A bucket renames nothing. A finished target is removed like an unfinished one: under the lease, so that no run writes there, and the
marker that makes it a checkpoint goes first. The record goes last, so that a later call recognises a target whose removal was
interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from reshard.errors import StorageError, TargetExistsError
from reshard.storage.buckets import objects
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.transaction import bucket_of, lock_in_bucket, state_folder
from reshard.storage.commit_markers import UNFINISHED_MARK, is_left_unfinished
from reshard.storage.local.staging import FILES_OF_PREFIX
from reshard.storage.location import Location


def check_new_in_bucket(target: Location, *, overwrite: bool, file: str = "") -> None:
    """Refuses a target that exists, unless it may be overwritten; leftovers of an unfinished run are no target.

    Also refuses a whole bucket, and a single file: a file appears in a bucket by itself, and nothing could mark it as
    not proven yet.
    """
    if not target.path:
        raise StorageError(
            f"the target {target} is a whole bucket; name a folder in it, such as {target / 'checkpoint'}"
        )
    if file == FILES_OF_PREFIX:
        raise StorageError(
            f"the target {target} is several files, which a bucket cannot show at once; write to a local disk and copy the files from "
            "there, the index last"
        )
    if file:
        raise StorageError(
            f"the target {target} is a single file, which cannot be checked in a bucket before it appears; name a folder, such as "
            f"{target.parent / 'serving'}"
        )
    found = target.status()
    if found is None:
        return
    if found.kind == "file":
        raise TargetExistsError(
            f"the target {target} is an object and was left untouched; a checkpoint is a folder: choose another target, or "
            "remove it"
        )
    if not overwrite and not is_left_unfinished(target):
        raise TargetExistsError(
            f"the target {target} exists already and was left untouched; choose another, or ask to overwrite it (overwrite)"
        )


def has_state(target: Location, state: str | None = None) -> bool:
    """True if a run has left, or uses, the folder of records beside a target.

    Also true for an unfinished mark that came late into a finished target.
    """
    if next(islice(state_folder(target, state).files(), 1), None) is not None:
        return True
    mark = target / UNFINISHED_MARK
    return (
        isinstance(mark.store, BucketStore)
        and objects.known_version(mark.store, mark.path) is not None
    )


def stamp_in_bucket(output: Location, records: Sequence[str]) -> str | None:
    """The version of the record; None if there is none."""
    found = _record_in(output, records).status()
    return found.version if found is not None and found.kind == "file" else None


def remove_from_bucket(output: Location, stamp: str, records: Sequence[str]) -> bool:
    """Removes an output. Raises StorageError if its last objects stay."""
    with lock_in_bucket(output) as locked:
        if stamp_in_bucket(output, records) != stamp:
            return False
        record = _record_in(output, records).name
        # Its marker goes first, against a reader or a crash in between: the rest is no checkpoint.
        locked.keep_files()
        others = [f"{output.path}/{name}" for name in locked.files() if name != record]
        objects.delete(bucket_of(output), others)
        locked.abort()
    if stamp_in_bucket(output, records) == stamp:
        raise StorageError(f"cannot remove {output}: its last objects could not be deleted")
    return True


def _record_in(output: Location, records: Sequence[str]) -> Location:
    """The first record that is there; the last one if none is."""
    *first, last = (output / record for record in records)
    return next((record for record in first if record.is_file()), last)
