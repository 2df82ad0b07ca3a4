"""The files that say whether a checkpoint in a bucket is complete; a bucket has no rename that could say it.

The number of the run that put such a mark is kept with the object and not in it: contents are the same in every run. It is the
fence of the run's lease, so that later runs to a target have greater numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from reshard.errors import MissingError
from reshard.storage.base import StoreWrapper
from reshard.storage.location import Location

COMMIT_MARKER = "commit_success.txt"
"""Put last, by stock Orbax and by reshard: what lacks it is not finished."""

COMMITTED = b"Checkpoint commit was successful"
"""Stock readers ask only whether the file is there; Orbax adds a path, which a rename would make untrue."""

UNFINISHED_MARK = "reshard_unfinished.txt"
"""Put first and removed last by reshard, for formats whose own readers know no marker."""

_NUMBER = "reshardrun"
"""Azure takes letters and digits only."""


def is_left_unfinished(target: Location) -> bool:
    """Whether all that is below a target is what an unfinished run of reshard left; never where folders are renamed.

    A commit marker does not count if a run put it that had lost the target to the one whose unfinished mark is there: its
    request came late.
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
    """The number of the run that put a mark; 0 where it has none, or is gone."""
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
