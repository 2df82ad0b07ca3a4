"""A finished output in a bucket is known by the version of its record, and removed under its lease, the record last."""

from __future__ import annotations

import obstore
import pytest

from reshard.errors import StorageError, TargetBusyError
from reshard.storage.buckets.transaction import ObjectTransaction
from reshard.storage.location import Location, locate
from reshard.storage.targets import lock_target, remove_finished, stamp_of_finished
from tests.emulators.buckets import Bucket

RECORDS = ("record.json", "index.json")


@pytest.fixture
def output(bucket: Bucket) -> Location:
    for name in ("commit_success.txt", "chunk", "record.json", "item/commit_success.txt"):
        obstore.put(bucket.store(), f"run/out/{name}", name.encode(), use_multipart=False)
    return locate(f"{bucket.url}/run/out")


def stamp(output: Location) -> str:
    found = stamp_of_finished(output, RECORDS)
    assert found is not None
    return found


def remove(output: Location, known: str) -> bool:
    return remove_finished(output, known, RECORDS, ".unused")


def test_only_the_output_that_is_known_is_removed(output: Location, bucket: Bucket) -> None:
    obstore.put(bucket.store(), "run/out-2/chunk", b"x", use_multipart=False)
    known = stamp(output)
    (output / "record.json").replace(b"other")
    assert not remove(output, known)
    assert len(list(output.files())) == 4
    assert remove(output, stamp(output))
    assert list(locate(f"{bucket.url}/run").files()) == ["out-2/chunk"]
    assert stamp_of_finished(output, RECORDS) is None


def test_the_second_record_counts_where_the_first_is_missing(output: Location) -> None:
    (output / "record.json").remove()
    assert stamp_of_finished(output, RECORDS) is None
    (output / "index.json").replace(b"{}")
    assert remove(output, stamp(output))


def test_it_is_not_removed_while_another_run_has_it(output: Location) -> None:
    known = stamp(output)
    with lock_target(output), pytest.raises(TargetBusyError):
        remove(output, known)
    assert len(list(output.files())) == 4


def test_a_removal_that_did_not_end_is_told(
    output: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = stamp(output)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectTransaction, "abort", lambda _: None)
        with pytest.raises(
            StorageError, match=f"^cannot remove {output}: its last objects could not be deleted$"
        ):
            remove(output, known)
    assert stamp(output) == known
    assert remove(output, known)
    assert list(output.files()) == []
