"""A transaction of one run that begins, writes a small target, and loses it to a later run."""

from __future__ import annotations

from reshard.storage.buckets import objects
from reshard.storage.buckets.lease import LeaseRecord
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.transaction import ObjectTransaction
from reshard.storage.commit_markers import COMMIT_MARKER, COMMITTED
from tests.emulators.buckets import Bucket

STATE = "run/.7.reshard-partial"
LEASE = f"{STATE}/lease"
LATER = 1 << 60
"""The number of a run that takes the target later."""


def keys(bucket: Bucket) -> list[str]:
    return list(bucket.emulator.objects.bucket(bucket.name).keys)


def take_away(store: BucketStore) -> None:
    """A later run takes the lease, as after this one was dead."""
    objects.put(store, LEASE, LeaseRecord("run/7", LATER, "later").render())


def started(transaction: ObjectTransaction) -> None:
    transaction.begin({"of": "a test"})


def write(transaction: ObjectTransaction) -> None:
    started(transaction)
    (transaction.root / "c/0").write(b"0123456789")
    transaction.mark({"meta": b"{}", COMMIT_MARKER: COMMITTED})
