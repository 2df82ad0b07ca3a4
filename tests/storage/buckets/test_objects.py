"""Objects are put whole, in parts or only where nothing is, and deleted; what fails leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from reshard.errors import CorruptError, SourceChangedError, StorageError, TargetExistsError
from reshard.storage.base import OpenFile
from reshard.storage.buckets import objects
from reshard.storage.buckets.clouds import CLOUDS
from reshard.storage.buckets.store import BucketStore
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import BreakUpload, Disconnect, Flip, Refuse

PART = 5 << 20


def read(store: BucketStore, path: str) -> bytes:
    return store.open(path).read(0, 1 << 24)


def test_an_object_is_put_whole(store: BucketStore, bucket: Bucket) -> None:
    version = objects.put(store, "run/é", b"one")
    assert read(store, "run/é") == b"one"
    assert store.status("run/é").version == version
    assert objects.put(store, "run/é", memoryview(b"other")) != version
    assert read(store, "run/é") == b"other"
    sent = bucket.emulator.log.of("put")
    assert len(sent) == 2
    assert all(
        ("x-amz-checksum-crc64nvme" in one.headers) == (bucket.scheme == "s3") for one in sent
    )
    assert CLOUDS[bucket.scheme].proves_uploads == (bucket.scheme == "s3")


def test_s3_refuses_bytes_that_changed_on_the_way(s3_bucket: Bucket) -> None:
    store = BucketStore("s3", s3_bucket.name)
    s3_bucket.emulator.faults.add(Flip(1, upload=True), operation="put", times=None)
    with pytest.raises(
        StorageError,
        match="the store received other bytes than were sent; check memory and network",
    ):
        objects.put(store, "a", b"0123456789")
    assert store.status("a") is None


def test_only_where_nothing_is(store: BucketStore) -> None:
    version = objects.put_new(store, "commit_success.txt", b"mine")
    assert objects.put_new(store, "commit_success.txt", b"mine") == version
    for other in b"hers", b"theirs":
        with pytest.raises(
            TargetExistsError,
            match=r"cannot write .*/commit_success.txt: an object is there already; choose another target",
        ):
            objects.put_new(store, "commit_success.txt", other)
    assert read(store, "commit_success.txt") == b"mine"


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run replaces each object just before it is read back in its version."""
    before = BucketStore.open

    def open_late(store: BucketStore, path: str, version: str = "", what: str = "") -> OpenFile:
        if version:
            store.client(path).put(path, b"hers")
        return before(store, path, version, what)

    monkeypatch.setattr(BucketStore, "open", open_late)


@pytest.mark.usefixtures("overtaken")
def test_an_object_that_another_run_replaces_meanwhile_is_there_already(store: BucketStore) -> None:
    store.client("lease").put("lease", b"mine")
    with pytest.raises(TargetExistsError, match=r"cannot write .*/lease: an object is there"):
        objects.put_new(store, "lease", b"mine")


@pytest.mark.usefixtures("overtaken")
def test_an_object_that_another_run_replaces_before_it_is_proved_was_put(
    gcs_bucket: Bucket,
) -> None:
    store = BucketStore("gs", gcs_bucket.name)
    gcs_bucket.emulator.faults.add(Flip(1, upload=True), operation="put")  # its MD5 is another one
    assert objects.put(store, "lease", b"mine")
    assert read(store, "lease") == b"hers"


def test_only_the_version_that_was_named_is_replaced(store: BucketStore) -> None:
    assert objects.known_version(store, "lease") is None
    objects.put(store, "lease", b"1")
    first = objects.known_version(store, "lease")
    assert first is not None
    objects.replace(store, "lease", b"2", first)
    for path in "lease", "none":
        with pytest.raises(SourceChangedError, match=r"cannot write .*/(lease|none): "):
            objects.replace(store, path, b"3", first)
    assert read(store, "lease") == b"2"


def test_a_lost_answer_is_no_other_object(store: BucketStore, bucket: Bucket) -> None:
    bucket.emulator.faults.add(Disconnect(done=True), operation="put")
    version = objects.put_new(store, "marker", b"mine")
    assert bucket.emulator.log.count("put") == 2
    assert store.status("marker").version == version


def test_an_upload_that_breaks_off_is_made_again(store: BucketStore, bucket: Bucket) -> None:
    bucket.emulator.faults.add(BreakUpload(1000), operation="put")
    objects.put(store, "a", bytes(100_000))
    assert read(store, "a") == bytes(100_000)


def test_parts_in_order(store: BucketStore, bucket: Bucket) -> None:
    data = np.random.default_rng(1).bytes(2 * PART + 12345)
    pieces = [data[: PART // 2], b"", data[PART // 2 : 2 * PART], data[2 * PART :]]
    version = objects.put_parts(store, "large", iter(pieces), PART)
    assert read(store, "large") == data
    assert store.status("large").version == version
    assert bucket.emulator.log.counts()["put_part"] == 3
    with pytest.raises(
        StorageError, match=r"parts of 5 bytes are too small; the store takes 5,242,880 or more"
    ):
        objects.put_parts(store, "large", [b"x"], 5)


def _breaking() -> Iterator[bytes]:
    yield bytes(PART)
    yield bytes(PART)
    raise CorruptError("the source is damaged")


def test_a_failed_upload_is_aborted(store: BucketStore, bucket: Bucket) -> None:
    with pytest.raises(CorruptError, match="the source is damaged"):
        objects.put_parts(store, "a", _breaking(), PART)
    bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="put_part", nth=2, times=None
    )
    with pytest.raises(
        StorageError, match="the credentials have no permission; grant s3:PutObject"
    ):
        objects.put_parts(store, "a", [bytes(PART)] * 3, PART)
    assert bucket.emulator.log.counts()["abort_upload"] == 2
    assert store.status("a") is None


def test_deletion(store: BucketStore, bucket: Bucket) -> None:
    for path in "run/a", "run/b/c", "run2/d", "run/e":
        objects.put(store, path, b"x")
    objects.delete(store, ["run/e", "run/none"])
    objects.delete(store, [])
    assert objects.delete_folder(store, "run") == 2
    assert sorted(store.files("")) == ["run2/d"]
    bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED),
        operation="delete_many" if bucket.scheme == "s3" else "delete",
        times=None,
    )
    with pytest.raises(
        StorageError,
        match=r"cannot delete .*/run2/d: the credentials have no permission; grant s3:DeleteObject",
    ):
        objects.delete(store, ["run2/d"])
    with pytest.raises(StorageError, match="a whole bucket is not deleted"):
        objects.delete_folder(store, "")


@pytest.mark.parametrize("path", ["a/../b", "a//b", "a\n"])
def test_a_path_that_is_not_clean_is_not_written(store: BucketStore, path: str) -> None:
    with pytest.raises(
        StorageError, match=r"has the part|has an empty part|has the control character"
    ):
        objects.put(store, path, b"x")
