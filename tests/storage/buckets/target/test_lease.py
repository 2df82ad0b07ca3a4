"""A lease: one run has it, a run that lost it finds out, and one that nobody renews is taken over."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from reshard.errors import ResumeError, StorageError, TargetBusyError
from reshard.storage.buckets import lease as taking
from reshard.storage.buckets import objects
from reshard.storage.buckets.lease import Lease, LeaseRecord, acquire_lease, read_lease
from reshard.storage.buckets.store import BucketStore
from reshard.storage.checked_lines import checked_line
from reshard.storage.host import _start_ticks, process_mark
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call, Disconnect, Flip, Refuse

PATH = "run/.7.reshard-partial/lease"
TARGET = "run/7"


@pytest.fixture
def lease(store: BucketStore) -> Iterator[Lease]:
    taken = acquire_lease(store, PATH, TARGET)
    yield taken
    taken.release()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "DEAD_S", 0.3)
    monkeypatch.setattr(taking, "LOOK_S", 0.02)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a lease does not die while it is looked at."""
    monkeypatch.setattr(taking, "DEAD_S", 1e6)
    monkeypatch.setattr(taking, "LOOK_S", 0.0)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a lease fails."""

    def waited(_: float) -> None:
        raise AssertionError("it waited to see whether the lease changes")

    monkeypatch.setattr(taking, "time", SimpleNamespace(**{**vars(time), "sleep": waited}))


def held(run: str, fence: int = 1 << 60, **mark: object) -> LeaseRecord:
    return LeaseRecord(TARGET, fence, run, mark={**process_mark(), **mark})


def steal(store: BucketStore, **mark: object) -> None:
    """Another run puts its lease, as after this one was dead."""
    objects.put(store, PATH, held("another", **mark).render())


def test_a_renewal_replaces_what_this_run_put(lease: Lease, store: BucketStore) -> None:
    lease.renew()
    lease.renew()
    found = read_lease(store, PATH)
    assert found is not None
    assert (found.beat, found.fence, found.is_free) == (2, lease.fence, False)
    lease.release()
    assert read_lease(store, PATH).is_free


def test_the_version_of_a_successor_is_not_taken_for_its_own(
    lease: Lease, store: BucketStore, bucket: Bucket
) -> None:
    """The run stands still between a renewal and the look after it."""
    bucket.emulator.faults.add(Call(lambda: steal(store)), operation="head", key=PATH)
    with pytest.raises(TargetBusyError, match=r"this run lost run/7: another run took .*lease, or it was removed; nothing was published"):  # fmt: skip
        lease.renew()
    assert lease.is_lost
    with pytest.raises(TargetBusyError):
        lease.renew()
    lease.release()
    assert read_lease(store, PATH) == held("another")


def test_a_run_whose_lease_was_removed_has_lost_it(lease: Lease, store: BucketStore) -> None:
    objects.delete(store, [PATH])
    with pytest.raises(TargetBusyError, match="or it was removed"):
        lease.renew()


@pytest.mark.parametrize("times", [1, 2])
def test_a_renewal_whose_answer_was_lost_is_its_own(
    lease: Lease, bucket: Bucket, times: int
) -> None:
    for nth in range(times):
        bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=PATH, nth=nth + 1)
    lease.renew()
    lease.renew()
    assert not lease.is_lost


def test_a_taking_whose_answer_was_lost_is_its_own(store: BucketStore, bucket: Bucket) -> None:
    for taken in range(2):
        bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=PATH)
        lease = acquire_lease(store, PATH, TARGET)
        lease.renew()
        lease.release()
        assert not lease.is_lost, taken


def test_a_lease_that_was_taken_over_and_removed_at_once_is_put_again(
    store: BucketStore, bucket: Bucket
) -> None:
    """The run stood still after it had put it; that says nothing of whether the store keeps conditions."""
    gone = Call(lambda: bucket.store().delete(PATH))
    bucket.emulator.faults.add(gone, operation="put", key=PATH, nth=2)
    lease = acquire_lease(store, PATH, TARGET)
    assert lease.is_conditional
    lease.renew()
    assert read_lease(store, PATH).run == lease._record.run
    lease.release()


def test_a_lease_that_grows_while_it_is_read_is_read_whole(
    lease: Lease, store: BucketStore, bucket: Bucket
) -> None:
    def grow() -> None:
        steal(store, host="h" * 3000)

    bucket.emulator.faults.add(Call(grow), operation="get", key=PATH)
    found = read_lease(store, PATH)
    assert found is not None
    assert found.mark["host"] == "h" * 3000
    assert not lease.is_lost  # it does not know yet


def test_the_time_that_a_machine_sleeps_counts(
    lease: Lease, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.clock_gettime

    def after_sleep(clock: int) -> float:
        return real(clock) + (60.0 if clock == time.CLOCK_BOOTTIME else 0.0)

    before = bucket.emulator.log.count("put")
    lease.check()
    assert bucket.emulator.log.count("put") == before
    monkeypatch.setattr(time, "clock_gettime", after_sleep)
    lease.check()
    assert bucket.emulator.log.count("put") == before + 1


@pytest.mark.usefixtures("_at_once")
def test_a_lease_that_a_run_of_this_process_could_not_give_back_is_taken_at_once(
    store: BucketStore, bucket: Bucket
) -> None:
    first = acquire_lease(store, PATH, TARGET)
    denied = bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="put", key=PATH, times=None
    )
    first.release()
    assert denied.struck
    bucket.emulator.faults.clear()
    assert not read_lease(store, PATH).is_free
    second = acquire_lease(store, PATH, TARGET)
    assert second.fence > first.fence
    with pytest.raises(TargetBusyError):
        first.renew()
    second.release()


@pytest.mark.usefixtures("_at_once")
def test_a_run_of_this_process_that_lives_is_told_at_once(store: BucketStore, lease: Lease) -> None:
    with pytest.raises(TargetBusyError, match=r"another run \(process \d+ on .*\) is writing run/7 now; wait for it to end"):  # fmt: skip
        acquire_lease(store, PATH, TARGET)
    lease.check()


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("host", ["this", "another"])
def test_a_lease_that_nobody_renews_is_taken_over_although_its_process_may_live(
    store: BucketStore, host: str
) -> None:
    """It stands still, or could not give the lease back when its run failed."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    pid = process.pid or 0
    mark = {"pid": pid, "started": _start_ticks(pid), **({"host": "b"} if host == "another" else {})}  # fmt: skip
    before = held("lives on", fence=5, **mark)
    objects.put(store, PATH, before.render())
    began = time.monotonic()
    taken = acquire_lease(store, PATH, TARGET)
    assert time.monotonic() - began >= taking.DEAD_S
    assert taken.fence > before.fence
    taken.release()
    process.kill()
    process.join()


@pytest.mark.usefixtures("_patient")
def test_a_process_that_ends_while_another_waits_makes_room(
    store: BucketStore, bucket: Bucket
) -> None:
    """Although nobody has asked for its exit code."""
    process = subprocess.Popen(["sleep", "600"])
    mark = {"pid": process.pid, "started": _start_ticks(process.pid)}
    objects.put(store, PATH, held("other", fence=5, **mark).render())
    bucket.emulator.faults.add(Call(process.kill), operation="head", key=PATH, nth=4)
    taken = acquire_lease(store, PATH, TARGET)
    assert taken.fence > 5
    taken.release()
    process.wait(60)


@pytest.mark.usefixtures("_patient")
def test_a_lease_that_is_renewed_meanwhile_is_not_taken(store: BucketStore, bucket: Bucket) -> None:
    other = held("other", host="b", fence=5)
    objects.put(store, PATH, other.render())
    renewed = LeaseRecord(TARGET, 5, "other", 1, mark=other.mark)
    bucket.emulator.faults.add(
        Call(lambda: objects.put(store, PATH, renewed.render())), operation="head", key=PATH, nth=4
    )
    with pytest.raises(TargetBusyError, match=r"another run \(process \d+ on b\) is writing run/7"):
        acquire_lease(store, PATH, TARGET)
    assert read_lease(store, PATH) == renewed


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("end", ["given back", "removed"])
def test_a_run_that_ends_while_another_waits_makes_room(
    store: BucketStore, bucket: Bucket, end: str
) -> None:
    other = held("other", host="b", fence=5)
    objects.put(store, PATH, other.render())
    free = LeaseRecord(TARGET, 5, "other", 1, is_free=True, mark=other.mark).render()

    def ends() -> None:
        if end == "removed":
            objects.delete(store, [PATH])
        else:
            objects.put(store, PATH, free)

    bucket.emulator.faults.add(Call(ends), operation="head", key=PATH, nth=4)
    taken = acquire_lease(store, PATH, TARGET)
    assert taken.fence > 5
    taken.release()


def test_fences_grow_although_nothing_of_the_last_run_is_left(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes forward."""
    milliseconds = itertools.count(time.time_ns(), 1_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(milliseconds))
    first = acquire_lease(store, PATH, TARGET)
    first.remove()
    assert store.status(PATH) is None
    second = acquire_lease(store, PATH, TARGET)
    assert second.fence > first.fence
    second.remove()


def test_a_fence_grows_although_the_clock_was_set_back(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = acquire_lease(store, PATH, TARGET)
    first.release()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    second = acquire_lease(store, PATH, TARGET)
    assert second.fence == first.fence + 1
    second.release()


@pytest.mark.parametrize("byte", [0, 12, 40, 90])
def test_a_bit_that_flips_while_a_lease_is_read_changes_nothing(
    store: BucketStore, bucket: Bucket, lease: Lease, byte: int
) -> None:
    expected = read_lease(store, PATH)
    bucket.emulator.faults.add(Flip(byte), operation="get", key=PATH)
    assert read_lease(store, PATH) == expected
    bucket.emulator.faults.add(Disconnect(done=True), operation="put", key=PATH)
    bucket.emulator.faults.add(Flip(byte), operation="get", key=PATH)
    lease.renew()
    assert not lease.is_lost


def damage(store: BucketStore, byte: int) -> None:
    data = bytearray(store.open(PATH).read(0, 1 << 16))
    data[byte] ^= 4
    objects.put(store, PATH, bytes(data))


@pytest.mark.parametrize("byte", [0, 12, 40, 90])
def test_a_lease_that_is_damaged_is_taken_over_as_one_that_nobody_renews(
    store: BucketStore, lease: Lease, byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that has it, if it lives, finds out."""
    damage(store, byte)
    monkeypatch.setattr(taking, "DEAD_S", 0.0)
    second = acquire_lease(store, PATH, TARGET)
    assert read_lease(store, PATH).run == second._record.run
    with pytest.raises(TargetBusyError, match="this run lost run/7: another run took "):
        lease.renew()
    second.release()


def test_a_lease_that_was_cut_to_nothing_is_taken_over(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put(store, PATH, b"")
    monkeypatch.setattr(taking, "DEAD_S", 0.0)
    taken = acquire_lease(store, PATH, TARGET)
    taken.renew()
    taken.release()


@pytest.mark.usefixtures("lease", "_patient")
def test_a_damaged_lease_that_changes_meanwhile_is_not_taken(
    store: BucketStore, bucket: Bucket
) -> None:
    damage(store, 40)
    looks = 2 + bucket.emulator.log.count("head")
    bucket.emulator.faults.add(Call(lambda: steal(store)), operation="head", key=PATH, nth=3)
    with pytest.raises(TargetBusyError, match=r"another run \(process \d+ on .*\) is writing run/7 now"):  # fmt: skip
        acquire_lease(store, PATH, TARGET)
    assert bucket.emulator.log.count("head") > looks
    assert read_lease(store, PATH) == held("another")


def test_a_lease_of_another_version_is_refused(store: BucketStore) -> None:
    for document in ({"format": "reshard.lease", "version": 2}, {}, []):
        objects.put(store, PATH, checked_line(json.dumps(document)))
        with pytest.raises(ResumeError, match="is no lease that this version of reshard knows"):
            acquire_lease(store, PATH, TARGET)


def test_a_bit_that_flips_on_the_way_to_the_store_is_sent_again(
    store: BucketStore, bucket: Bucket, lease: Lease
) -> None:
    bucket.emulator.faults.add(Flip(40, upload=True), operation="put", key=PATH)
    lease.renew()
    assert read_lease(store, PATH).beat == 1
    lease.renew()
    bucket.emulator.faults.add(Flip(40, upload=True), operation="put", key=PATH, times=None)
    with pytest.raises(StorageError, match="the store received other bytes than were sent; check memory and network"):  # fmt: skip
        lease.renew()
