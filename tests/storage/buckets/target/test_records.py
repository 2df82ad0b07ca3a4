"""The records of a run in a bucket: read again where a bit flips, put again where a request fails, and not believed where damaged."""

from __future__ import annotations

import time

import pytest

from reshard.errors import StorageError
from reshard.storage.buckets import objects, segments
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.transaction import ObjectTransaction, lock_in_bucket
from reshard.storage.location import Location
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Disconnect, Flip, Refuse
from tests.storage.buckets.target.transactions import keys, started


def read_back(transaction: ObjectTransaction) -> list[bytes]:
    return list(transaction.records())


def left_with_five_records(target: Location) -> list[bytes]:
    """A run that was interrupted."""
    with lock_in_bucket(target) as transaction:
        started(transaction)
        for number in range(5):
            transaction.append(f"record {number}")
    return [f"record {number}".encode() for number in range(5)]


@pytest.mark.parametrize("byte", [0, 30, 60])
def test_a_bit_that_flips_while_records_are_read_loses_none(
    target: Location, bucket: Bucket, byte: int
) -> None:
    expected = left_with_five_records(target)
    with lock_in_bucket(target) as transaction:
        flip = bucket.emulator.faults.add(Flip(byte), operation="get", key="/journal/.*-000000$")
        assert transaction.left_by() == {"of": "a test"}
        assert flip.struck
        bucket.emulator.faults.add(Flip(byte), operation="get", key="/journal/")
        assert read_back(transaction) == expected


def damage(bucket: Bucket, store: BucketStore, end: str, word: bytes) -> None:
    (path,) = [key for key in keys(bucket) if key.endswith(end)]
    data = bytearray(store.open(path).read(0, 1 << 16))
    data[data.index(word)] ^= 1
    objects.put(store, path, bytes(data))


def test_damaged_records_are_not_believed(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    expected = left_with_five_records(target)
    damage(bucket, store, "-000001", b"record 3")
    with lock_in_bucket(target) as transaction:
        assert read_back(transaction) == expected[:3]
        assert transaction.left_by() == {"of": "a test"}
    damage(bucket, store, "-000000", b"identity")
    with lock_in_bucket(target) as transaction:
        assert transaction.left_by() is None
        assert transaction.earlier() is None


@pytest.mark.parametrize("fault", [Disconnect(done=True), Disconnect(), Flip(20, upload=True), Refuse(answers.SLOW_DOWN)], ids=lambda f: type(f).__name__)  # fmt: skip
def test_a_segment_is_put_although_a_request_fails(
    target: Location, bucket: Bucket, fault: object
) -> None:
    with lock_in_bucket(target) as transaction:
        started(transaction)
        transaction.append("one")
        bucket.emulator.faults.add(fault, operation="put", key="/journal/")
        assert read_back(transaction) == [b"one"]


def test_records_that_cannot_be_put_are_put_later(
    target: Location, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FLUSH_S", 0.0)
    with lock_in_bucket(target) as transaction:
        started(transaction)
        denied = bucket.emulator.faults.add(
            Refuse(answers.ACCESS_DENIED), operation="put", key="/journal/", times=None
        )
        transaction.append("one")
        until = time.monotonic() + 60
        while not denied.struck:
            assert time.monotonic() < until
            time.sleep(0.05)
        transaction.check()
        with pytest.raises(StorageError, match="the credentials have no permission; grant s3:PutObject"):  # fmt: skip
            transaction.close()
        bucket.emulator.faults.clear()
        transaction.append("two")
        assert read_back(transaction) == [b"one", b"two"]
