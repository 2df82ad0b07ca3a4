"""What obstore finds is the same on every server: the project's own answer as the others do."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import numpy as np
import obstore
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PreconditionError,
)

from tests.emulators.buckets import Bucket

PART = 5 << 20


def names(store: Any, prefix: str | None = None) -> list[str]:
    return [found["path"] for page in obstore.list(store, prefix) for found in page]


def put(store: Any, key: str, data: bytes, mode: Any = "overwrite") -> Any:
    """What was put, in the form in which it can be the mode of the next one."""
    done = obstore.put(store, key, data, mode=mode)
    return {name: value for name, value in done.items() if value is not None}


def random_bytes(nbytes: int) -> bytes:
    return np.random.default_rng(0).bytes(nbytes)


def test_what_is_put_is_found(bucket: Bucket) -> None:
    store = bucket.store()
    done = obstore.put(store, "run/1/a", b"hello")
    got = obstore.get(store, "run/1/a")
    assert bytes(got.bytes()) == b"hello"
    assert (got.meta["size"], got.meta["e_tag"]) == (5, done["e_tag"])
    head = obstore.head(store, "run/1/a")
    assert (head["size"], head["e_tag"], head["path"]) == (5, done["e_tag"], "run/1/a")
    assert head["version"] == done["version"]
    age = datetime.datetime.now(datetime.UTC) - head["last_modified"]
    assert abs(age.total_seconds()) < 60


@pytest.mark.parametrize("nbytes", [0, 1, 3 << 20])
def test_objects_of_any_size(bucket: Bucket, nbytes: int) -> None:
    data = random_bytes(nbytes)
    obstore.put(bucket.store(), "a", data, use_multipart=False)
    assert bytes(obstore.get(bucket.store(), "a").bytes()) == data


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((0, 4), b"0123"), ((3, 4), b"3"), ((6, 10), b"6789"), ((6, 99), b"6789"),
        ({"offset": 7}, b"789"),
    ],
)  # fmt: skip
def test_ranges(bucket: Bucket, asked: Any, found: bytes) -> None:
    obstore.put(bucket.store(), "a", b"0123456789")
    got = obstore.get(bucket.store(), "a", options={"range": asked})
    assert bytes(got.bytes()) == found
    assert got.meta["size"] == 10


@pytest.mark.parametrize("last", [4, 99])
def test_the_last_bytes(bucket: Bucket, last: int) -> None:
    obstore.put(bucket.store(), "a", b"0123456789")
    if bucket.scheme == "az":
        with pytest.raises(NotSupportedError, match="suffix range"):
            obstore.get(bucket.store(), "a", options={"range": {"suffix": last}})
        return
    got = obstore.get(bucket.store(), "a", options={"range": {"suffix": last}})
    assert bytes(got.bytes()) == b"0123456789"[-last:]


def test_a_range_behind_the_end_is_refused(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", b"0123456789")
    with pytest.raises(GenericError, match=r"416|Wanted range starting at 10"):
        obstore.get(bucket.store(), "a", options={"range": (10, 12)})


@pytest.mark.parametrize("read", ["if_match", "if_none_match"])
def test_what_is_read_can_be_pinned(bucket: Bucket, read: str) -> None:
    store = bucket.store()
    first = obstore.put(store, "a", b"first")["e_tag"]
    matching: Any = {read: first if read == "if_match" else '"00000000000000000000000000000000"'}
    assert bytes(obstore.get(store, "a", options=matching).bytes()) == b"first"
    second = obstore.put(store, "a", b"second")["e_tag"]
    assert first != second
    if read == "if_match":
        with pytest.raises(PreconditionError):
            obstore.get(store, "a", options={"if_match": first})


def test_create_only(bucket: Bucket) -> None:
    store = bucket.store()
    obstore.put(store, "marker", b"mine", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "marker", b"theirs", mode="create")
    assert bytes(obstore.get(store, "marker").bytes()) == b"mine"
    obstore.delete(store, "marker")
    obstore.put(store, "marker", b"theirs", mode="create")


def test_update_only_what_was_read(bucket: Bucket) -> None:
    store = bucket.store()
    first = put(store, "journal", b"1")
    second = put(store, "journal", b"2", first)
    with pytest.raises(PreconditionError):
        put(store, "journal", b"3", first)
    put(store, "journal", b"4", second)
    assert bytes(obstore.get(store, "journal").bytes()) == b"4"


def test_an_update_of_nothing_is_refused(bucket: Bucket) -> None:
    store = bucket.store()
    first = put(store, "journal", b"1")
    obstore.delete(store, "journal")
    with pytest.raises((PreconditionError, FileNotFoundError)):
        put(store, "journal", b"2", first)
    assert names(store) == []


def test_listings(bucket: Bucket) -> None:
    store = bucket.store()
    keys = ["100/a", "1000/a", "1000/b/c", "1000/b/d", "1000/é &<>'%", "1000/z"]
    for key in keys:
        obstore.put(store, key, key.encode())
    assert sorted(names(store)) == sorted(keys)
    assert sorted(names(store, "1000/b")) == ["1000/b/c", "1000/b/d"]
    assert names(store, "100") == ["100/a"]
    assert names(store, "10") == []
    found = obstore.list_with_delimiter(store, "1000")
    assert found["common_prefixes"] == ["1000/b"]
    objects = {one["path"]: one for one in found["objects"]}
    assert sorted(objects) == ["1000/a", "1000/z", "1000/é &<>'%"]
    head = obstore.head(store, "1000/a")
    listed, told = objects["1000/a"]["e_tag"], head["e_tag"]
    assert listed is not None
    assert told is not None
    # Azure lists ETags without their quotes.
    assert listed == (told.strip('"') if bucket.scheme == "az" else told)
    assert objects["1000/a"]["size"] == 6
    assert sorted(names(bucket.store(prefix="1000"))) == sorted(k[5:] for k in keys[1:])


def test_a_listing_of_several_pages(bucket: Bucket) -> None:
    store = bucket.store()
    keys = [f"{n:04}/x" for n in range(1002)]
    for key in keys:
        obstore.put(store, key, b"")
    assert names(store) == keys
    found = obstore.list_with_delimiter(store)
    assert found["common_prefixes"] == [key[:4] for key in keys]


def test_uploads_in_parts(bucket: Bucket) -> None:
    store, data = bucket.store(), random_bytes(2 * PART + 1)
    done = obstore.put(store, "a", data, use_multipart=True, chunk_size=PART)
    assert bytes(obstore.get(store, "a").bytes()) == data
    assert obstore.head(store, "a")["e_tag"] == done["e_tag"]
    across = obstore.get(store, "a", options={"range": (PART - 2, PART + 3)})
    assert bytes(across.bytes()) == data[PART - 2 : PART + 3]


def test_copies(bucket: Bucket) -> None:
    store = bucket.store()
    obstore.put(store, "a/é", b"data")
    obstore.copy(store, "a/é", "b")
    assert bytes(obstore.get(store, "b").bytes()) == b"data"


def test_deletion(bucket: Bucket) -> None:
    store = bucket.store()
    for key in ["a", "b/c", "d"]:
        obstore.put(store, key, b"x")
    obstore.delete(store, ["a", "b/c"])
    assert names(store) == ["d"]


@pytest.mark.parametrize("verb", [obstore.get, obstore.head])
def test_a_missing_key_is_not_found(bucket: Bucket, verb: Any) -> None:
    with pytest.raises(FileNotFoundError):
        verb(bucket.store(), "none")


def test_a_missing_bucket_is_not_found(bucket: Bucket) -> None:
    store = msgspec.structs.replace(bucket, name="no-such-bucket").store()
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "a")
    with pytest.raises((FileNotFoundError, GenericError), match="404"):
        list(obstore.list(store))
    with pytest.raises((FileNotFoundError, GenericError), match="404"):
        obstore.put(store, "a", b"")
