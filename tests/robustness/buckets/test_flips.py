"""A bit that flips on the way to a bucket or back is found: it is sent again, or one clear error, and nothing is published."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from reshard.errors import ReshardError, StorageError
from tests.campaigns import pairwise, singly
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Flip
from tests.robustness.buckets.cases import (
    CASES,
    SERVERS,
    TARGET,
    convert,
    emptied,
    files_of,
    is_taken_for_one,
    nothing_is_left,
)

pytestmark = pytest.mark.usefixtures("_small")

OTHER_BYTES = (
    "the store received other bytes than were sent; check memory and network, and run again"
)


@pytest.mark.parametrize(
    ("bucket", "case", "has_md5"),
    pairwise(SERVERS, ["raw", "zstd"], [True, False]),
    indirect=["bucket"],
)
def test_what_is_put_whole_is_sent_again(
    case: str, has_md5: bool, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    """Each put in turn. Without an MD5 as its ETag, Google Cloud's object is read back."""
    if bucket.scheme == "gs":
        bucket.emulator.objects.has_md5_etags = has_md5
    convert(bucket, tiny, case)
    expected = files_of(bucket, tmp_path / "undisturbed")
    puts = bucket.emulator.log.count("put")
    for number in range(1, puts + 1):
        emptied(bucket)
        flip = bucket.emulator.faults.add(Flip(77 * number, upload=True), operation="put", nth=number)  # fmt: skip
        convert(bucket, tiny, case)
        assert flip.struck
        assert files_of(bucket, tmp_path / str(number)) == expected, number
        nothing_is_left(bucket)
    bucket.emulator.objects.has_md5_etags = bucket.scheme == "gs"


@pytest.mark.parametrize(
    ("bucket", "key"),
    singly(SERVERS, ["/lease$", "unfinished", "journal", "/rows/", "/slices", "commit_success"]),
    indirect=["bucket"],
)
def test_what_changes_each_time_it_is_sent_is_refused(key: str, bucket: Bucket, tiny: Path) -> None:
    bucket.emulator.faults.add(Flip(9, upload=True), operation="put", key=key, times=None)
    with pytest.raises(ReshardError, match=OTHER_BYTES):
        convert(bucket, tiny, "raw")
    bucket.emulator.faults.clear()
    assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
    if key != "/lease$":
        convert(bucket, tiny, "raw")
        assert is_taken_for_one(bucket, tiny)


@pytest.mark.parametrize("operation", ["put_part", "complete_upload"])
def test_parts_that_change_on_the_way_are_refused(
    operation: str, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    convert(bucket, tiny, "parts")
    expected = files_of(bucket, tmp_path / "undisturbed")
    requests = bucket.emulator.log.count(operation)
    for number in range(1, requests + 1):
        emptied(bucket)
        bucket.emulator.faults.add(Flip(300, upload=True), operation=operation, nth=number)
        with pytest.raises(StorageError, match=rf"cannot write {bucket.url}/{TARGET}/model-\d+-of-\d+\.safetensors: "):  # fmt: skip
            convert(bucket, tiny, "parts")
        assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
        assert not bucket.emulator.uploads.unfinished
        convert(bucket, tiny, "parts")
        assert files_of(bucket, tmp_path / str(number)) == expected, number
        nothing_is_left(bucket)


@pytest.mark.parametrize(("bucket", "case"), singly(SERVERS, [*CASES]), indirect=["bucket"])
def test_what_changes_when_it_is_read_back_is_not_published(
    case: str, bucket: Bucket, tiny: Path
) -> None:
    """``--verify readback`` reads every object of the target; each answer flips in turn."""
    convert(bucket, tiny, case, check="readback")
    found = [one.key for one in bucket.emulator.log.of("get") if one.key.startswith(f"{TARGET}/")]
    data = sorted({key for key in found if "rows/c" in key or "cols/c" in key or "model-" in key})
    assert len(data) == 2
    for key in data:
        refused = 0
        for number in range(1, found.count(key) + 1):
            emptied(bucket)
            bucket.emulator.faults.add(Flip(5000), operation="get", key=f"{key}$", nth=number)
            try:
                convert(bucket, tiny, case, check="readback")
            except ReshardError:
                refused += 1
                assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
                convert(bucket, tiny, case, check="readback")
            bucket.emulator.faults.clear()
            assert is_taken_for_one(bucket, tiny)
        assert refused
