"""Versions in a bucket that a run had published for receivers when it was killed.

Receivers take the index for the commit, this program the marker that is put after it. Between the two requests a version is whole, and receivers
may have read it. So it is finished, never removed or made anew.
"""

from __future__ import annotations

from reshard.errors import ReshardError
from reshard.formats.delta.read_delta import open_delta
from reshard.storage.commit_markers import is_left_unfinished
from reshard.storage.location import Location, locate
from reshard.storage.transaction import Transaction


def is_half_published(place: Location) -> bool:
    """True if a delta is whole but for the marker; never where a folder appears by a rename."""
    now = locate(str(place))  # anew: a location of a bucket keeps its first listing
    if not is_left_unfinished(now):
        return False
    try:
        open_delta(now)
    except ReshardError:
        return False
    return True


def finish_version(place: Location, transaction: Transaction) -> None:
    """Puts the marker of a version that lacks nothing else; ``transaction`` holds it."""
    if is_half_published(place):
        transaction.keep_files()
        transaction.mark({})
        transaction.commit(overwrite=False)
