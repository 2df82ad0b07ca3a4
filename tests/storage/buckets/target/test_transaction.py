"""A transaction in a bucket: its target appears with its marker, which markers count, and in which order they go."""

from __future__ import annotations

import itertools

import pytest

from reshard.errors import TargetBusyError, TargetExistsError
from reshard.storage.buckets import lease as leases
from reshard.storage.buckets import objects
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.transaction import lock_in_bucket
from reshard.storage.commit_markers import (
    COMMIT_MARKER,
    COMMITTED,
    UNFINISHED_MARK,
    is_left_unfinished,
    numbered,
    run_of,
)
from reshard.storage.location import Location
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call, Disconnect, Refuse
from tests.storage.buckets.target.transactions import LATER, keys, take_away, write


def test_a_target_appears_with_its_marker(target: Location, bucket: Bucket) -> None:
    with lock_in_bucket(target) as transaction:
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


def test_a_marker_that_somebody_else_put_is_refused(target: Location, bucket: Bucket) -> None:
    for number in {}, numbered(LATER):
        with lock_in_bucket(target) as transaction:
            write(transaction)
            objects.put(transaction._store, "run/7/commit_success.txt", COMMITTED, number)
            with pytest.raises(TargetExistsError, match=r"somebody else put .*/run/7/commit_success\.txt before this run had written the whole target; remove that object, and run the same command again"):  # fmt: skip
                transaction.commit(overwrite=False)
            assert not transaction.is_committed()
        bucket.store().delete("run/7/commit_success.txt")


def test_a_marker_whose_answer_was_lost_counts(target: Location, bucket: Bucket) -> None:
    with lock_in_bucket(target) as transaction:
        write(transaction)
        bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=COMMIT_MARKER)
        transaction.commit(overwrite=False)
        assert transaction.is_committed()
        assert run_of(target / COMMIT_MARKER) == transaction._lease.fence


def test_a_marker_that_was_put_although_the_store_said_no_counts(
    target: Location, bucket: Bucket
) -> None:
    """The answer was lost, and whoever asks again is not let in."""
    with lock_in_bucket(target) as transaction:
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
    with lock_in_bucket(target) as transaction:
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
    with lock_in_bucket(target) as transaction:
        write(transaction)
        transaction.commit(overwrite=False)
        transaction.abort()
        earlier = transaction._lease.fence - 1
    objects.put(store, f"run/7/{UNFINISHED_MARK}", b"late", numbered(earlier))
    assert not is_left_unfinished(target)
    assert not is_left_unfinished(target.view())
    with lock_in_bucket(target) as transaction:
        transaction.abort()
    assert (target / "c/0").exists()
    assert not (target / UNFINISHED_MARK).exists()


def test_what_an_interrupted_run_left_is_removed_with_the_late_marker_of_an_earlier_one(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    with lock_in_bucket(target) as transaction:
        write(transaction)
        earlier = transaction._lease.fence - 1
    objects.put(store, "run/7/commit_success.txt", COMMITTED, numbered(earlier))
    assert is_left_unfinished(target)
    with lock_in_bucket(target) as transaction:
        transaction.abort()
    assert keys(bucket) == []


def test_a_marker_that_came_too_late_is_no_success(
    target: Location, store: BucketStore, bucket: Bucket
) -> None:
    """The run stands still between its last look at the lease and the put of the marker."""
    with lock_in_bucket(target) as transaction:
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
    with lock_in_bucket(target) as transaction:
        write(transaction)
        take_away(store)
        with pytest.raises(TargetBusyError, match="this run lost"):
            transaction.commit(overwrite=False)
    assert "run/7/commit_success.txt" not in keys(bucket)


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
    with lock_in_bucket(target) as transaction:
        if act == "begin":
            transaction.begin({})
        else:
            transaction.keep_files()
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
