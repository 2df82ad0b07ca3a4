"""What writes a target, by numbers that are easy to add up by hand, and what clouds do differently."""

from __future__ import annotations

from reshard.planning.target_requests import (
    carried,
    copied,
    deleted,
    metadata,
    of_transaction,
    requests_of_read_back,
    uploaded,
    writing_of,
)
from reshard.planning.tensor_plan import TensorPlan
from reshard.storage.requests import NONE, Requests, pages_of
from tests.planning.timed_plans import move


def test_large_files_are_uploaded_in_parts() -> None:
    assert uploaded("s3", 100, 0, 1) == uploaded("gs", 100, 0, 1) == Requests(put=1, sent_bytes=100)
    parts = Requests(put=2, part=3, sent_bytes=100)
    assert uploaded("s3", 100, 3, 2) == parts
    assert uploaded("gs", 100, 3, 2) == parts + Requests(get=2, received_bytes=100)


def test_what_is_copied() -> None:
    assert copied("gs") == Requests(head=2, copy=1)
    assert copied("s3") == Requests(head=2, copy=1, put=2)
    once = Requests(head=1, get=1, put=1, received_bytes=7, sent_bytes=7)
    assert carried(7, from_bucket=False) == once
    assert carried(7, from_bucket=True) == once + Requests(get=1, received_bytes=7)


def test_a_target_is_read_back_file_by_file() -> None:
    chunks, files = Requests(put=1500, sent_bytes=90), Requests(put=5, sent_bytes=10)
    assert requests_of_read_back(chunks, files, 1600) == Requests(
        list=2, get=1605, received_bytes=100
    )


def test_clouds_delete_differently() -> None:
    assert (deleted("gs", 1500).delete, deleted("s3", 1500).delete) == (1500, 2)
    small = of_transaction("s3", 10, 0, 0)
    assert of_transaction("gs", 10, 0, 0) - small == Requests(delete=2)
    assert of_transaction("s3", 2500, 0, 0) - small == Requests(list=2)
    assert of_transaction("s3", 10, 5, 2) - small == Requests(sent_bytes=5 * 60 + 2 * 110)
    assert [pages_of(count) for count in (0, 1, 1000, 1001)] == [1, 1, 1, 2]


def test_metadata_grows_with_the_tensors() -> None:
    before, after = metadata(24, 200, 1, own_files=True)
    assert (before.put, after) == (
        24, Requests(list=2, head=1, put=7, sent_bytes=900 + 24 * 450 + 6 * 200)
    )  # fmt: skip
    assert metadata(24, 200, 2, own_files=True)[1].put == 11
    none, after = metadata(24, 200, 1, own_files=False)
    assert (none, after.put) == (NONE, 2)


def test_the_chunks_of_a_tensor() -> None:
    written = writing_of(TensorPlan((move(0, written=32, chunks=(0, 2, 8)),)))
    assert (written.source, written.target, written.puts, written.nbytes) == ("w", "w", 2, 32)
    assert written.raw
    assert not written.shared
    # The larger chunk has 6 elements of 4 bytes.
    assert [written.read_back(nbytes) for nbytes in (8, 24, 100)] == [6, 2, 2]
