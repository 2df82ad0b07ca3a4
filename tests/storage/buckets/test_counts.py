"""Requests are counted where they are made, and nowhere else are any made."""

from __future__ import annotations

import re
from pathlib import Path

import obstore
import pytest

from reshard.storage.base import NONE, Requests
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.store import BucketStore, copy_within
from reshard.storage.location import locate
from tests.emulators.buckets import Bucket

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


def test_obstore_is_called_in_one_module() -> None:
    calls = re.compile(r"obstore\.(get|head|put|list|list_with_delimiter|delete|copy|rename)\b")
    found = [
        path.name
        for path in (ROOT / "reshard").rglob("*.py")
        if calls.search(re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL))
    ]
    assert found == ["counts.py"]


def test_every_kind_is_counted(bucket: Bucket) -> None:
    store = locate(bucket.url).store
    assert isinstance(store, BucketStore)
    before = counts.so_far()
    version = objects.put_new(store, "a", b"x" * 1000)
    store.status("a")
    store.status("folder")
    store.open("a", version).read(10, 90)
    store.names("")
    store.listing("")
    objects.put_parts(store, "parts", [b"y" * (7 * MIB)] * 3, 8 * MIB)
    objects.delete(store, ["a", "parts"])
    found = counts.so_far() - before
    cloud, is_gcs = store.traits.requests, bucket.scheme == "gs"
    assert (cloud.reads_uploads_back, cloud.deleted_at_once == 1) == (is_gcs, is_gcs)
    assert found == Requests(
        list=3, head=2, get=1 + 3 * is_gcs, put=1 + 2, part=3, delete=1 + is_gcs,
        received_bytes=90 + is_gcs * 21 * MIB, sent_bytes=1000 + 21 * MIB,
    )  # fmt: skip


def test_copies_are_counted(gcs_bucket: Bucket) -> None:
    data = b"z" * (5 * MIB)
    obstore.put(gcs_bucket.store(), "a", data, use_multipart=False)
    source, before = locate(f"{gcs_bucket.url}/a"), counts.so_far()
    status = source.status()
    assert status is not None
    assert copy_within(source, status, locate(f"{gcs_bucket.url}/b"))
    assert counts.so_far() - before == Requests(head=2, copy=1)


def test_pages_are_counted(gcs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(25):
        obstore.put(gcs_bucket.store(), f"run/{number:02}/x", b"x", use_multipart=False)
    monkeypatch.setattr(counts, "PAGE_OBJECTS", 10)
    folder = locate(f"{gcs_bucket.url}/run")
    for read in folder.files, folder.entries:
        before = counts.so_far()
        assert len(list(read())) == 25
        assert (counts.so_far() - before).list == 3


def test_parts_may_be_read_from_a_bucket(bucket: Bucket) -> None:
    """obstore asks for them within its runtime, in which no request can be made."""
    data = bytes(range(256)) * (80 << 10)
    obstore.put(bucket.store(), "a", data, use_multipart=False)
    file = locate(f"{bucket.url}/a").open()
    pieces = (file.read(start, 5 * MIB) for start in range(0, len(data), 5 * MIB))
    locate(f"{bucket.url}/b").write_pieces(pieces, len(data))
    assert bytes(obstore.get(bucket.store(), "b").bytes()) == data


def test_an_error_in_a_part_is_raised_and_nothing_is_stored(bucket: Bucket) -> None:
    def parts() -> object:
        yield b"x" * (20 * MIB)
        raise KeyError("part")

    with pytest.raises(KeyError, match="part"):
        locate(f"{bucket.url}/b").write_pieces(parts(), 21 * MIB)
    assert not locate(f"{bucket.url}/b").exists()


def test_requests_are_added_up() -> None:
    one = Requests(list=1, get=2, received_bytes=10)
    assert one + one == one * 2
    assert one * 2 - one == one
    assert (one.total, one.by_kind["get"], NONE.total) == (3, 2, 0)
    assert list(one.by_kind) == ["list", "head", "get", "put", "part", "delete", "copy"]
