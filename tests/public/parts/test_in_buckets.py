"""Parts of a conversion to a bucket: committed without a rest, removed by ``clean``, and never over what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import ResumeError, StorageError
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part


@pytest.mark.parametrize("kind", ["s3_bucket", "gcs_bucket"])
def test_parts_in_buckets(kind: str, trained: Path, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(kind)
    target = f"{bucket.url}/served/1000"
    for number in (1, 3):
        convert_part(trained, target, f"{number}/3")
    with pytest.raises(StorageError, match=r"the parts 2/3 \(not begun\) of .* are missing"):
        reshard.commit(target)
    with pytest.raises(ResumeError, match=r"parts of a conversion to .* were begun"):
        reshard.convert(trained, target, layout=LAYOUT, **LIMITS)
    convert_part(trained, target, "2/3")
    again = convert_part(trained, target, "2/3")
    assert again.resumed_bytes == again.moved_bytes
    assert not reshard.is_checkpoint(target)
    reshard.commit(target)
    names = sorted(entry["path"] for page in bucket.store().list() for entry in page)
    assert [name for name in names if "reshard" in name] == []
    whole = f"{bucket.url}/whole/1000"
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS)
    assert objects_below(bucket, "served/1000/") == objects_below(bucket, "whole/1000/")
    assert reshard.convert(trained, target, layout=LAYOUT, **LIMITS).already_done


def test_packed_files_in_a_bucket(trained: Path, s3_bucket: Any) -> None:
    options = {"to": "safetensors", "file_bytes": "2MB"}
    target, whole = f"{s3_bucket.url}/t", f"{s3_bucket.url}/whole"
    for number in (1, 2, 3):
        convert_part(trained, target, f"{number}/3", **options)
    reshard.commit(target)
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS, **options)
    assert objects_below(s3_bucket, "t/") == objects_below(s3_bucket, "whole/")


def objects_below(bucket: Any, prefix: str) -> dict[str, bytes]:
    store = bucket.store()
    names = [entry["path"] for page in store.list() for entry in page]
    return {
        name[len(prefix) :]: bytes(store.get(name).bytes())
        for name in names
        if name.startswith(prefix) and not name.endswith("_CHECKPOINT_METADATA")
    }


@pytest.mark.parametrize("kind", ["s3_bucket", "gcs_bucket"])
@pytest.mark.parametrize("options", [{}, {"to": "safetensors", "file_bytes": "2MB"}], ids=str)
def test_the_commit_overwrites(
    kind: str, options: dict[str, Any], trained: Path, request: pytest.FixtureRequest
) -> None:
    bucket = request.getfixturevalue(kind)
    target, whole = f"{bucket.url}/t", f"{bucket.url}/whole"
    reshard.convert(trained, target, select=["kernel"], **LIMITS)
    old = objects_below(bucket, "t/")
    for number in (1, 2):
        assert objects_below(bucket, "t/") == old
        convert_part(trained, target, f"{number}/2", overwrite=True, check="readback", **options)
    report = reshard.commit(target)
    assert {tensor.proof for tensor in report.tensors} == {"proved"}
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS, **options)
    assert objects_below(bucket, "t/") == objects_below(bucket, "whole/")
    assert [name for name in objects_below(bucket, "") if "reshard" in name] == []


def test_clean_removes_staged_parts_and_keeps_the_old_target(trained: Path, s3_bucket: Any) -> None:
    reshard.convert(trained, f"{s3_bucket.url}/t", select=["kernel"], **LIMITS)
    old = objects_below(s3_bucket, "")
    convert_part(trained, f"{s3_bucket.url}/t", "1/2", overwrite=True)
    assert objects_below(s3_bucket, "") != old
    reshard.clean(f"{s3_bucket.url}/t")
    assert objects_below(s3_bucket, "") == old


def test_clean_removes_parts_in_a_bucket(trained: Path, s3_bucket: Any) -> None:
    convert_part(trained, f"{s3_bucket.url}/t", "1/2")
    reshard.clean(f"{s3_bucket.url}/t")
    assert [entry for page in s3_bucket.store().list() for entry in page] == []
