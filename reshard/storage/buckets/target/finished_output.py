"""A finished output in a bucket: a stamp that identifies it, and its removal.

A bucket renames nothing. The record is the same if its version is. The output is removed like the unfinished output of a run:
under the lease of the target, so that no run writes there, and the marker that makes it a checkpoint goes first. The record
goes last, so that a later call recognises an output whose removal was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import StorageError
from reshard.storage.buckets import objects
from reshard.storage.buckets.target.held import held_objects
from reshard.storage.buckets.target.transaction import bucket_of
from reshard.storage.location import Location


def stamp_in_bucket(output: Location, records: Sequence[str]) -> str | None:
    """The version of the record; None if there is none."""
    found = _record_in(output, records).status()
    return found.version if found is not None and found.kind == "file" else None


def remove_from_bucket(output: Location, stamp: str, records: Sequence[str]) -> bool:
    """Removes an output. Raises StorageError if its last objects stay."""
    with held_objects(output) as held:
        if stamp_in_bucket(output, records) != stamp:
            return False
        record = _record_in(output, records).name
        held.adopt()  # unfinished from now on: without its marker
        others = [f"{output.path}/{name}" for name in held.files() if name != record]
        objects.delete(bucket_of(output), others)
        held.abort()
    if stamp_in_bucket(output, records) == stamp:
        raise StorageError(f"cannot remove {output}: its last objects could not be deleted")
    return True


def _record_in(output: Location, records: Sequence[str]) -> Location:
    """The first record that is there; the last one if none is."""
    *first, last = (output / record for record in records)
    return next((record for record in first if record.is_file()), last)
