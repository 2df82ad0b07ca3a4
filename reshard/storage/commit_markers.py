"""The files that mark a checkpoint in a bucket as complete or unfinished; a bucket has no rename that could show it.

The number of the run that put such a mark is an attribute of the object and not in its content, which is the same in every run.
It is the fence of the run's lease, so that later runs to a target have greater numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from reshard.errors import MissingError
from reshard.storage.base import StoreWrapper
from reshard.storage.location import Location

COMMIT_MARKER = "commit_success.txt"
"""Put last, by stock Orbax and by reshard: a checkpoint without it is not finished."""

COMMITTED = b"Checkpoint commit was successful"
"""The marker's content. Stock readers only look for the file; Orbax adds a path, which a rename would make wrong."""

UNFINISHED_MARK = "reshard_unfinished.txt"
"""Put first and removed last by reshard, for formats whose own readers know no marker."""

_NUMBER = "reshardrun"
"""The name of the attribute; Azure takes letters and digits only."""


def markers_at(place: Location) -> dict[str, bytes]:
    """The files that mark a checkpoint as complete; none if a rename gives it its name."""
    return {} if place.traits.renames else {COMMIT_MARKER: COMMITTED}


def is_marked(place: Location) -> bool | None:
    """True if the marker of a complete checkpoint is there; None if its name alone shows that it is complete."""
    return None if place.traits.renames else (place / COMMIT_MARKER).is_file()


def is_left_unfinished(target: Location) -> bool:
    """True if all that is below a target is the leftover of an unfinished run of reshard; always False if the store renames folders.

    A commit marker does not count if it is older than the unfinished mark: its run had lost the target to the run of that mark,
    and its request came late.
    """
    unfinished, committed = target / UNFINISHED_MARK, target / COMMIT_MARKER
    if target.traits.renames or not unfinished.exists():
        return False
    if not committed.exists():
        return True
    return run_of(committed) < run_of(unfinished)


def numbered(run: int) -> Mapping[str, str]:
    """The attributes of a mark that a run puts."""
    return {_NUMBER: str(run)}


def run_of(mark: Location) -> int:
    """The number of the run that put a mark; 0 if the mark has none, or is gone."""
    from reshard.storage.buckets import counts
    from reshard.storage.buckets.errors import bucket_errors
    from reshard.storage.buckets.store import BucketStore

    store = mark.store
    while isinstance(store, StoreWrapper):
        store = store.store
    if not isinstance(store, BucketStore):
        return 0
    client = store.client(mark.path)
    try:
        with bucket_errors("read", str(mark)):
            found = counts.get(client, mark.path).attributes.get(_NUMBER, "0")
    except MissingError:
        return 0
    return int(found) if found.isdecimal() else 0
