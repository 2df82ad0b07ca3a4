"""A transaction in a bucket: what a run that lost its target does, which marks count, and in which order they go."""

from __future__ import annotations

import itertools
import time

import pytest

from reshard.errors import MissingError, StorageError, TargetBusyError, TargetExistsError
from reshard.storage.buckets import objects
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.target import lease as leases
from reshard.storage.buckets.target import segments
from reshard.storage.buckets.target.held import held_objects
from reshard.storage.buckets.target.lease import Held, read_lease
from reshard.storage.buckets.target.transaction import ObjectTransaction
from reshard.storage.commit_markers import (
    COMMIT_MARKER,
    COMMITTED,
    UNFINISHED_MARK,
    is_left_unfinished,
    numbered,
    run_of,
)
from reshard.storage.location import Location, locate
from reshard.storage.upload import Upload
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call, Disconnect, Flip, Refuse

STATE = "run/.7.reshard-partial"
LEASE = f"{STATE}/lease"
LATER = 1 << 60
"""The number of a run that takes the target later."""


@pytest.fixture
def target(bucket: Bucket) -> Location:
    return locate(f"{bucket.url}/run/7")


@pytest.fixture
def store(bucket: Bucket) -> BucketStore:
    return BucketStore(bucket.scheme, bucket.name)


def keys(bucket: Bucket) -> list[str]:
    return list(bucket.emulator.objects.bucket(bucket.name).keys)


def take_away(store: BucketStore) -> None:
    """A later run takes the lease, as after this one was dead."""
    objects.put(store, LEASE, Held("run/7", LATER, "later").render())


def started(transaction: ObjectTransaction) -> None:
    transaction.begin({"of": "a test"})


def write(transaction: ObjectTransaction) -> None:
    started(transaction)
    (transaction.root / "c/0").write(b"0123456789")
    transaction.mark({"meta": b"{}", COMMIT_MARKER: COMMITTED})


def test_a_target_appears_with_its_marker(target: Location, bucket: Bucket) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        assert is_left_unfinished(target)
        assert not transaction.is_committed()
        transaction.commit(overwrite=False)
        assert transaction.is_committed()
        assert not is_left_unfinished(target)
        transaction.abort()
    assert keys(bucket) == ["run/7/c/0", "run/7/commit_success.txt", "run/7/meta"]
    puts = [one.key for one in bucket.emulator.log.of("put")]
    assert puts.index("run/7/commit_success.txt") > puts.index("run/7/meta") > puts.index("run/7/c/0")  # fmt: skip


# What a run does that lost its target.


def test_it_puts_no_records(target: Location, store: BucketStore, bucket: Bucket) -> None:
    with pytest.raises(TargetBusyError, match=r"this run lost .*run/7: another run took"), held_objects(target) as transaction:  # fmt: skip
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
    with pytest.raises(TargetBusyError, match=r"this run lost .*nothing was published; wait for the other run") as caught, held_objects(target) as transaction:  # fmt: skip
        started(transaction)
        take_away(store)
        raise MissingError("an object is gone")
    assert str(caught.value.__cause__) == "an object is gone"


def test_another_error_is_itself_while_the_target_is_held(target: Location) -> None:
    with pytest.raises(MissingError, match="an object is gone"), held_objects(target) as transaction:  # fmt: skip
        started(transaction)
        raise MissingError("an object is gone")


def test_its_keeper_finds_out_and_the_next_call_says_so(
    target: Location, store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.1)
    with held_objects(target) as transaction:
        started(transaction)
        take_away(store)
        until = time.monotonic() + 10
        while not transaction._lease.is_lost and time.monotonic() < until:
            time.sleep(0.05)
        for act in (
            transaction.check,
            lambda: transaction.append("one"),
            lambda: transaction.commit(overwrite=False),
        ):
            with pytest.raises(TargetBusyError, match="this run lost"):
                act()
        transaction.abort()
    assert read_lease(store, LEASE).run == "later"  # type: ignore[union-attr]


def test_it_removes_nothing(target: Location, store: BucketStore, bucket: Bucket) -> None:
    with held_objects(target) as transaction:
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
    with held_objects(target) as transaction:
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
    with held_objects(target) as transaction:
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
    with held_objects(target) as transaction:
        write(transaction)
        later = f"{STATE}/journal/{LATER}-000000"
        objects.put(store, later, b"")
        transaction.commit(overwrite=False)
        transaction.abort()
    assert [key for key in keys(bucket) if "/journal/" in key] == [later]


# Which markers count.


def test_a_marker_that_somebody_else_put_is_refused(target: Location, bucket: Bucket) -> None:
    for number in {}, numbered(LATER):
        with held_objects(target) as transaction:
            write(transaction)
            objects.put(transaction._store, "run/7/commit_success.txt", COMMITTED, number)
            with pytest.raises(TargetExistsError, match=r"somebody else put .*/run/7/commit_success\.txt before this run had written the whole target; remove that object, and run the same command again"):  # fmt: skip
                transaction.commit(overwrite=False)
            assert not transaction.is_committed()
        bucket.store().delete("run/7/commit_success.txt")


def test_a_marker_whose_answer_was_lost_counts(target: Location, bucket: Bucket) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=COMMIT_MARKER)
        transaction.commit(overwrite=False)
        assert transaction.is_committed()
        assert run_of(target / COMMIT_MARKER) == transaction._lease.fence


def test_a_marker_that_was_put_although_the_store_said_no_counts(
    target: Location, bucket: Bucket
) -> None:
    """The answer was lost, and whoever asks again is not let in."""
    with held_objects(target) as transaction:
        write(transaction)
        bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=COMMIT_MARKER)
        bucket.emulator.faults.add(
            Refuse(answers.ACCESS_DENIED), operation="put", key=COMMIT_MARKER
        )
        transaction.commit(overwrite=False)
        assert transaction.is_committed()


def test_the_late_marker_of_an_earlier_run_does_not_count_and_is_replaced(
    target: Location, store: BucketStore
) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        earlier = transaction._lease.fence - 1
        objects.put(store, "run/7/commit_success.txt", COMMITTED, numbered(earlier))
        objects.put(store, "run/7/meta", b"{'of': 'the earlier run'}", numbered(earlier))
        assert is_left_unfinished(target)
        transaction.commit(overwrite=False)
        assert (target / "meta").open().read(0, 99) == b"{}"
        transaction.abort()
    assert not is_left_unfinished(target)
    assert store.status("run/7/commit_success.txt") is not None


def test_a_late_unfinished_mark_of_an_earlier_run_changes_nothing(
    target: Location, store: BucketStore
) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        transaction.commit(overwrite=False)
        transaction.abort()
        earlier = transaction._lease.fence - 1
    objects.put(store, f"run/7/{UNFINISHED_MARK}", b"late", numbered(earlier))
    assert not is_left_unfinished(target)
    assert not is_left_unfinished(target.view())
    with held_objects(target) as transaction:
        transaction.abort()
    assert (target / "c/0").exists()
    assert not (target / UNFINISHED_MARK).exists()


def test_what_an_interrupted_run_left_is_removed_with_the_late_marker_of_an_earlier_one(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        earlier = transaction._lease.fence - 1
    objects.put(store, "run/7/commit_success.txt", COMMITTED, numbered(earlier))
    assert is_left_unfinished(target)
    with held_objects(target) as transaction:
        transaction.abort()
    assert keys(bucket) == []


def test_a_marker_that_came_too_late_is_no_success(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    """The run stands still between its last look at the lease and the put of the marker."""
    with held_objects(target) as transaction:
        write(transaction)

        def stand_still() -> None:
            take_away(store)
            objects.put(store, f"run/7/{UNFINISHED_MARK}", b"mine now", numbered(LATER))
            transaction._lease._renewed -= leases.SURE_S + 1

        bucket.emulator.faults.add(Call(stand_still), operation="put", key=COMMIT_MARKER)
        with pytest.raises(TargetBusyError, match="this run lost"):
            transaction.commit(overwrite=False)
        assert not transaction.is_committed()
    assert is_left_unfinished(target)


def test_a_commit_looks_at_the_lease_even_if_it_was_just_renewed(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    with held_objects(target) as transaction:
        write(transaction)
        take_away(store)
        with pytest.raises(TargetBusyError, match="this run lost"):
            transaction.commit(overwrite=False)
    assert "run/7/commit_success.txt" not in keys(bucket)


# In which order marks go.


@pytest.mark.parametrize("act", ["begin", "adopt"])
def test_the_markers_of_items_go_before_anything_else(
    target: Location, store: BucketStore, bucket: Bucket, act: str
) -> None:
    for name in ("a/c/0", "a/commit_success.txt", "b/commit_success.txt", "commit_success.txt", "x"):  # fmt: skip
        objects.put(store, f"run/7/{name}", b"old")
    gone: list[list[str]] = []

    def look() -> None:
        gone.append([key for key in keys(bucket) if key.startswith("run/7/") and "txt" in key])

    operation = "delete_many" if bucket.scheme == "s3" else "delete"
    bucket.emulator.faults.add(Call(look, done=True), operation=operation, times=None)
    with held_objects(target) as transaction:
        if act == "begin":
            transaction.begin({})
        else:
            transaction.adopt()
            transaction.remove("a/c/0")
    mark = f"run/7/{UNFINISHED_MARK}"
    items = ["run/7/a/commit_success.txt", "run/7/b/commit_success.txt"]
    steps = [there for there, _ in itertools.groupby(gone)]
    assert steps[0] == [
        *items,
        "run/7/commit_success.txt",
        mark,
    ]  # one that is not there is asked for first
    assert steps[1] == [*items, mark]
    assert [mark] in steps
    assert "run/7/a/c/0" not in keys(bucket)
    if bucket.scheme == "gs":
        deleted = [one.key for one in bucket.emulator.log.of("delete") if one.status == 204]
        assert deleted[0] == "run/7/commit_success.txt"
        assert set(deleted[1:3]) == set(items)


# Records.


def read_back(transaction: ObjectTransaction) -> list[bytes]:
    return list(transaction.records())


def left_with_five_records(target: Location) -> list[bytes]:
    """A run that was interrupted."""
    with held_objects(target) as transaction:
        started(transaction)
        for number in range(5):
            transaction.append(f"record {number}")
    return [f"record {number}".encode() for number in range(5)]


@pytest.mark.parametrize("byte", [0, 30, 60])
def test_a_bit_that_flips_while_records_are_read_loses_none(
    target: Location, bucket: Bucket, byte: int
) -> None:
    expected = left_with_five_records(target)
    with held_objects(target) as transaction:
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
    with held_objects(target) as transaction:
        assert read_back(transaction) == expected[:3]
        assert transaction.left_by() == {"of": "a test"}
    damage(bucket, store, "-000000", b"identity")
    with held_objects(target) as transaction:
        assert transaction.left_by() is None
        assert transaction.earlier() is None


@pytest.mark.parametrize("fault", [Disconnect(done=True), Disconnect(), Flip(20, upload=True), Refuse(answers.SLOW_DOWN)], ids=lambda f: type(f).__name__)  # fmt: skip
def test_a_segment_is_put_although_a_request_fails(
    target: Location, bucket: Bucket, fault: object
) -> None:
    with held_objects(target) as transaction:
        started(transaction)
        transaction.append("one")
        bucket.emulator.faults.add(fault, operation="put", key="/journal/")  # type: ignore[arg-type]
        assert read_back(transaction) == [b"one"]


def test_records_that_cannot_be_put_are_put_later(
    target: Location, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FLUSH_S", 0.0)
    with held_objects(target) as transaction:
        started(transaction)
        denied = bucket.emulator.faults.add(
            Refuse(answers.ACCESS_DENIED), operation="put", key="/journal/", times=None
        )
        transaction.append("one")
        until = time.monotonic() + 10
        while not denied.struck and time.monotonic() < until:
            time.sleep(0.05)
        transaction.check()
        with pytest.raises(StorageError, match="the credentials have no permission; grant s3:PutObject"):  # fmt: skip
            transaction.close()
        bucket.emulator.faults.clear()
        transaction.append("two")
        assert read_back(transaction) == [b"one", b"two"]
