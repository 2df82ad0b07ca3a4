"""The files that tell whether a checkpoint in a bucket is whole, since a bucket cannot rename a folder."""

from __future__ import annotations

from reshard.storage.location import Location

COMMIT_MARKER = "commit_success.txt"
"""Put last, by stock Orbax and by reshard: what lacks it is not finished."""

COMMITTED = b"Checkpoint commit was successful"
"""Readers ask only whether the file is there; Orbax adds a path, which a rename would make untrue."""

UNFINISHED_MARK = "reshard_unfinished.txt"
"""Put first and removed last by reshard, for formats whose own readers know no marker."""


def is_left_unfinished(target: Location) -> bool:
    """Whether all that is below a target is what an unfinished run of reshard left; never where folders are renamed."""
    if target.store.renames or not (target / UNFINISHED_MARK).exists():
        return False
    return not (target / COMMIT_MARKER).exists()
