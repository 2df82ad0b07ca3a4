"""A run that lost its target: it finds out, says so, puts no records, and removes nothing."""

from __future__ import annotations

import time

import pytest

from reshard.errors import MissingError, TargetBusyError
from reshard.storage.buckets import lease as leases
from reshard.storage.buckets import objects
from reshard.storage.buckets.lease import read_lease
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.transaction import lock_in_bucket
from reshard.storage.location import Location
from reshard.storage.target import Upload
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.storage.buckets.target.transactions import (
    LATER,
    LEASE,
    STATE,
    keys,
    started,
    take_away,
    write,
)


def test_it_puts_no_records(target: Location, store: BucketStore, bucket: Bucket) -> None:
    with pytest.raises(TargetBusyError, match=r"this run lost .*run/7: another run took"), lock_in_bucket(target) as transaction:  # fmt: skip
        started(transaction)
        transaction.append("one")
        take_away(store)
        bucket.emulator.log.clear()
        transaction._lease.renew()
    assert not [one.key for one in bucket.emulator.log.of("put") if "/journal/" in one.key]
    found = read_lease(store, LEASE)
    assert found is not None
    assert found.run == "later"


def test_it_says_so_whatever_it_met_first(target: Location, store: BucketStore) -> None:
    with pytest.raises(TargetBusyError, match=r"this run lost .*nothing was published; wait for the other run") as caught, lock_in_bucket(target) as transaction:  # fmt: skip
        started(transaction)
        take_away(store)
        raise MissingError("an object is gone")
    assert str(caught.value.__cause__) == "an object is gone"


def test_another_error_is_itself_while_the_target_is_held(target: Location) -> None:
    with pytest.raises(MissingError, match="an object is gone"), lock_in_bucket(target) as transaction:  # fmt: skip
        started(transaction)
        raise MissingError("an object is gone")


def test_its_keeper_finds_out_and_the_next_call_says_so(
    target: Location, store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.1)
    with lock_in_bucket(target) as transaction:
        started(transaction)
        take_away(store)
        until = time.monotonic() + 60
        while not transaction._lease.is_lost:
            assert time.monotonic() < until
            time.sleep(0.05)
        for act in (
            transaction.check,
            lambda: transaction.append("one"),
            lambda: transaction.commit(overwrite=False),
        ):
            with pytest.raises(TargetBusyError, match="this run lost"):
                act()
        transaction.abort()
    assert read_lease(store, LEASE).run == "later"


def test_it_removes_nothing(target: Location, store: BucketStore, bucket: Bucket) -> None:
    with lock_in_bucket(target) as transaction:
        write(transaction)
        take_away(store)
        transaction._lease._renewed -= leases.SURE_S + 1
        before = keys(bucket)
        transaction.abort()
        for remove in (lambda: transaction.remove("c/0"), lambda: transaction.begin({})):
            with pytest.raises(TargetBusyError, match="this run lost"):
                remove()
    assert keys(bucket) == before


def test_it_deletes_nothing_after_the_first_thousand(
    target: Location, store: BucketStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is checked before each request of many deletions."""
    monkeypatch.setattr(objects, "DELETED_AT_ONCE", 2)
    with lock_in_bucket(target) as transaction:
        started(transaction)
        names = [f"c/{number}" for number in range(6)]
        for name in names:
            (transaction.root / name).write(b"x")

        def stand_still() -> None:
            take_away(store)
            transaction._lease._renewed -= leases.SURE_S + 1

        operation = "delete_many" if bucket.scheme == "s3" else "delete"
        bucket.emulator.faults.add(Call(stand_still, done=True), operation=operation, nth=1)
        with pytest.raises(TargetBusyError, match="this run lost"):
            transaction._delete(names)
    assert len([key for key in keys(bucket) if "/c/" in key]) == 4


def test_a_file_in_parts_appears_only_after_the_lease_was_checked(
    target: Location, store: BucketStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "WHOLE_BYTES", 1 << 16)
    with lock_in_bucket(target) as transaction:
        started(transaction)
        data = bytes(6 << 20)
        upload = Upload(transaction.root / "large", len(data), transaction.check)
        upload.write(data)
        take_away(store)
        transaction._lease._renewed -= leases.SURE_S + 1
        with pytest.raises(TargetBusyError, match="this run lost"):
            upload.finish()
    assert "run/7/large" not in keys(bucket)
    assert not bucket.emulator.uploads.unfinished
    assert not bucket.emulator.log.count("complete_upload")


def test_it_deletes_no_records_of_a_later_run(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    with lock_in_bucket(target) as transaction:
        write(transaction)
        later = f"{STATE}/journal/{LATER}-000000"
        objects.put(store, later, b"")
        transaction.commit(overwrite=False)
        transaction.abort()
    assert [key for key in keys(bucket) if "/journal/" in key] == [later]
