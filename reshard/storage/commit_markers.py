"""The files that say whether a checkpoint in a bucket is complete; a bucket has no rename that could say it."""

from __future__ import annotations

from reshard.storage.location import Location

COMMIT_MARKER = "commit_success.txt"
"""Put last, by stock Orbax and by reshard: what lacks it is not finished."""

COMMITTED = b"Checkpoint commit was successful"
"""Stock readers ask only whether the file is there; Orbax adds a path, which a rename would make untrue."""

UNFINISHED_MARK = "reshard_unfinished.txt"
"""Put first and removed last by reshard, for formats whose own readers know no marker."""


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
    from reshard.storage.buckets.target.run_numbers import run_of

    return run_of(committed) < run_of(unfinished)
