"""Many short ranges at once: the same bytes, near ones in one request, and what cannot be read is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import obstore

from reshard.storage.calls import GAP_BYTES, REQUEST_BYTES, ByteRange, read_many
from reshard.storage.location import locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse

DATA = np.random.default_rng(4).bytes(3 << 20)


def test_near_ranges_are_read_together(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA, use_multipart=False)
    url = f"{bucket.url}/a"
    version = locate(url).status().version
    offsets = [0, 100, 250 + GAP_BYTES, 2 << 20, (2 << 20) + 50]
    parts = [ByteRange(url, version, offset, 100) for offset in offsets]
    bucket.emulator.log.clear()
    found = read_many(locate(url).store, [*parts, parts[0]])
    assert found == {part: DATA[part.offset : part.offset + 100] for part in parts}
    assert sorted(request.range for request in bucket.emulator.log.of("get")) == [
        "bytes=0-199",
        f"bytes={2 << 20}-{(2 << 20) + 149}",
        f"bytes={250 + GAP_BYTES}-{349 + GAP_BYTES}",
    ]


def test_a_request_is_not_longer_than_its_limit(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA, use_multipart=False)
    url = f"{bucket.url}/a"
    parts = [ByteRange(url, "", offset, 10_000) for offset in range(0, len(DATA) - 10_000, 10_000)]
    bucket.emulator.log.clear()
    found = read_many(locate(url).store, parts)
    assert all(found[part] == DATA[part.offset : part.offset + 10_000] for part in parts)
    requests = bucket.emulator.log.of("get")
    assert len(requests) == -(-len(parts) // (REQUEST_BYTES // 10_000))
    assert max(request.bytes_out for request in requests) <= REQUEST_BYTES


def test_what_cannot_be_read_is_left_out(bucket: Bucket) -> None:
    for key in "abc":
        obstore.put(bucket.store(), key, b"0123456789")
    parts = [ByteRange(f"{bucket.url}/{key}", "", 4, 4) for key in "abcd"]
    parts += [ByteRange(f"{bucket.url}/a", '"other"', 0, 4), ByteRange(f"{bucket.url}/c", "", 8, 9)]
    bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="get", key="/b$", times=None
    )
    store = locate(bucket.url).store
    assert read_many(store, parts) == {parts[0]: b"4567", parts[2]: b"4567"}
    assert read_many(store, []) == {}


def test_a_disk_is_asked_for_no_range(tmp_path: Path) -> None:
    def parts() -> Iterator[ByteRange]:
        raise AssertionError("a range was looked up")
        yield

    assert read_many(locate(tmp_path).store, parts()) == {}
