"""The number of the run that put a mark into a target, kept with the object and not in it: contents are the same in every run.

It is the fence of the run's lease, so that later runs to a target have greater numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from reshard.errors import MissingError
from reshard.storage.base import StoreWrapper
from reshard.storage.buckets import counts
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore
from reshard.storage.location import Location

_NAME = "reshardrun"
"""Azure takes letters and digits only."""


def numbered(run: int) -> Mapping[str, str]:
    """The attributes of a mark that a run puts."""
    return {_NAME: str(run)}


def run_of(mark: Location) -> int:
    """The number of the run that put a mark; 0 where it has none, or is gone."""
    store = mark.store
    while isinstance(store, StoreWrapper):
        store = store.store
    if not isinstance(store, BucketStore):
        return 0
    client = store.client(mark.path)
    try:
        with bucket_errors("read", str(mark)):
            found = counts.get(client, mark.path).attributes.get(_NAME, "0")
    except MissingError:
        return 0
    return int(found) if found.isdecimal() else 0
