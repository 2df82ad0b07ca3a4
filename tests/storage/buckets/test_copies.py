"""The store itself copies within a bucket: without bytes passing here, proven, and never over what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest

import reshard
from reshard.errors import SourceChangedError
from reshard.storage.buckets import store
from reshard.storage.copying import can_copy, copied_by_store, copy_file
from reshard.storage.location import Location, locate
from tests.emulators.buckets import Bucket

DATA = np.random.default_rng(5).bytes(300_000)


@pytest.fixture(params=["s3_bucket", "gcs_bucket", "moto_bucket"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket whose ETags are MD5s, and copies of anything are worth it."""
    found: Bucket = request.getfixturevalue(request.param)
    monkeypatch.setattr("reshard.storage.buckets.store.LEAST_BYTES", 1000)
    monkeypatch.setattr("reshard.storage.buckets.store._UNPROVEN", set())
    if request.param == "moto_bucket":
        yield found
        return
    objects = found.emulator.objects
    before, objects.has_md5_etags = objects.has_md5_etags, True
    yield found
    objects.has_md5_etags = before


def place(bucket: Bucket, key: str) -> Location:
    return locate(f"{bucket.url}/{key}")


def copied(bucket: Bucket, key: str = "a", to: str = "b") -> str:
    status = place(bucket, key).status()
    assert status is not None
    return copied_by_store(place(bucket, key), place(bucket, to), status)


def test_a_copy_has_the_bytes_and_its_version(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA)
    version = copied(bucket)
    found = place(bucket, "b").status()
    assert found is not None
    assert version == found.version
    assert bytes(obstore.get(bucket.store(), "b").bytes()) == DATA


def test_what_is_there_stays(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA)
    obstore.put(bucket.store(), "b", b"of another one")
    assert copied(bucket) == ""
    assert bytes(obstore.get(bucket.store(), "b").bytes()) == b"of another one"


def test_a_source_that_changed_is_refused_and_its_copy_removed(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA)
    status = place(bucket, "a").status()
    assert status is not None
    obstore.put(bucket.store(), "a", DATA[::-1])
    with pytest.raises(SourceChangedError, match=r"/a changed while it was copied: its ETag"):
        copied_by_store(place(bucket, "a"), place(bucket, "b"), status)
    assert place(bucket, "b").status() is None


def test_a_copy_that_proves_nothing_is_removed_and_not_tried_again(
    s3_bucket: Bucket, monkeypatch
) -> None:
    """The tests' S3 has ETags that are no MD5s, as a bucket with a customer's key has."""
    monkeypatch.setattr("reshard.storage.buckets.store.LEAST_BYTES", 1000)
    monkeypatch.setattr("reshard.storage.buckets.store._UNPROVEN", set())
    obstore.put(s3_bucket.store(), "a", DATA)
    url = f"{s3_bucket.url}/"
    assert can_copy(f"{url}a", f"{url}b", len(DATA))
    assert copied(s3_bucket) == ""
    assert place(s3_bucket, "b").status() is None
    assert not can_copy(f"{url}a", f"{url}b", len(DATA))
    copy_file(place(s3_bucket, "a"), place(s3_bucket, "b"))
    assert bytes(obstore.get(s3_bucket.store(), "b").bytes()) == DATA


@pytest.mark.parametrize(
    ("source", "target", "nbytes", "expected"),
    [
        ("s3://b/x", "s3://b/y", store.LEAST_BYTES, True),
        ("gs://b/x", "gs://b/y", store.GREATEST_BYTES, True),
        ("s3://b/x", "s3://b/y", store.LEAST_BYTES - 1, False),
        ("s3://b/x", "s3://b/y", store.GREATEST_BYTES + 1, False),
        ("s3://b/x", "s3://c/y", store.LEAST_BYTES, False),
        ("s3://b/x", "gs://b/y", store.LEAST_BYTES, False),
        ("az://b/x", "az://b/y", store.LEAST_BYTES, False),
        ("/data/x", "s3://b/y", store.LEAST_BYTES, False),
        ("s3://b/x", "/data/y", store.LEAST_BYTES, False),
    ],
)  # fmt: skip
def test_copies_are_worth_it_within_one_bucket(
    source: str, target: str, nbytes: int, expected: bool
) -> None:
    assert can_copy(source, target, nbytes) == expected


def test_chunks_that_stay_as_they_are_do_not_pass_through_this_process(
    bucket: Bucket, tmp_path: Path
) -> None:
    tree = {"a": np.arange(60_000, dtype="float32").reshape(300, 200)}
    reshard.save(tmp_path / "saved", tree)
    reshard.convert(
        tmp_path / "saved", f"{bucket.url}/zstd", compression="zstd", chunk_bytes="64KiB"
    )
    log = None if bucket.server is None else bucket.server.log
    if log is not None:
        log.clear()
    reshard.convert(f"{bucket.url}/zstd", f"{bucket.url}/kept", compression="keep", select=["a"])
    if log is not None:
        assert not [r.key for r in log.of("get") if "/c/" in r.key]
        assert log.counts()["put_part"] + log.counts()["copy"] == 4
    assert reshard.verify(f"{bucket.url}/kept", tmp_path / "saved").differences == 0
