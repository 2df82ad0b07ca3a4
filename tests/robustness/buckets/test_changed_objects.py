"""An object that is not the one that was put is found before the marker, whichever it is and whenever it changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import StorageError
from tests.campaigns import every, singly
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.emulators.server import Options
from tests.robustness.buckets.cases import (
    CASES,
    SERVERS,
    TARGET,
    convert,
    emptied,
    is_taken_for_one,
    keys,
    nothing_is_left,
)

pytestmark = pytest.mark.usefixtures("_small")

FOUND = "nothing was published; make sure that nothing else writes|the object changed after it was first looked at"
"""The second where Google Cloud's objects in parts are read back."""


def by_save(bucket: Bucket, _: Path) -> None:
    tree = {"w": np.arange(8.0), "text": "a", "inner": {"b": np.ones((3, 3))}}
    reshard.save(f"{bucket.url}/{TARGET}", tree)


def by_parts(bucket: Bucket, source: Path) -> None:
    for part in ("1/2", "2/2"):
        reshard.convert_part(source, f"{bucket.url}/{TARGET}", part=part, **CASES["raw"])
    reshard.commit(f"{bucket.url}/{TARGET}")


def by_convert(case: str) -> Callable[[Bucket, Path], None]:
    return lambda bucket, source: convert(bucket, source, case)


WAYS = {
    "convert": ("s3_bucket", by_convert("raw")),
    "convert to files": ("gcs_bucket", by_convert("parts")),
    "save": ("gcs_bucket", by_save),
    "parts": ("s3_bucket", by_parts),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_object_in_turn_is_replaced_once_it_is_put(
    way: str, request: pytest.FixtureRequest, tiny: Path
) -> None:
    lent, make = WAYS[way]
    bucket: Bucket = request.getfixturevalue(lent)
    bucket.emulator.options = Options(least_part_bytes=1)
    make(bucket, tiny)
    made = keys(bucket)
    made.remove(f"{TARGET}/commit_success.txt")
    for key in made[:: every(2)]:
        emptied(bucket)
        change = Call(lambda key=key: bucket.store().put(key, b"other"), done=True)
        rules = [
            bucket.emulator.faults.add(change, operation=operation, key=f"/{key}$")
            for operation in ("put", "complete_upload")
        ]
        with pytest.raises(StorageError, match=FOUND):
            make(bucket, tiny)
        assert any(rule.struck for rule in rules), key
        assert f"{TARGET}/commit_success.txt" not in keys(bucket), key


@pytest.mark.parametrize(
    ("bucket", "is_gone", "name"),
    singly(SERVERS, [True, False], ["rows/zarr.json", "cols/c.0.0", "_METADATA"]),
    indirect=["bucket"],
)
def test_an_object_that_changes_while_others_are_put(
    is_gone: bool, name: str, bucket: Bucket, tiny: Path
) -> None:
    """Somebody cleans up, or a deletion that the network held back comes late."""
    changed = partial(change, bucket, f"{TARGET}/{name}", is_gone=is_gone)
    late = "slices.json" if name.startswith("_") else "_sharding"
    bucket.emulator.faults.add(Call(changed), operation="put", key=f"{TARGET}/{late}$")
    is_found(bucket, tiny)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "replaced"])
def test_an_object_that_changes_after_everything_was_put_and_proven(
    is_gone: bool, bucket: Bucket, tiny: Path
) -> None:
    """Reading back takes a while, and so may a callback."""
    changed = partial(change, bucket, f"{TARGET}/cols/c.0.0", is_gone=is_gone)
    is_found(bucket, tiny, check="readback", before_publish=lambda _: changed())


def change(bucket: Bucket, key: str, *, is_gone: bool) -> None:
    if is_gone:
        bucket.store().delete(key)
    else:
        bucket.store().put(key, b"other")


def is_found(bucket: Bucket, source: Path, **options: Any) -> None:
    """One error, and nothing is published; the same run again puts it anew."""
    expected = "it was put, but is not there now, or is another object; nothing was published; make sure that nothing else writes there"  # fmt: skip
    with pytest.raises(StorageError, match=expected):
        convert(bucket, source, "raw", **options)
    assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
    convert(bucket, source, "raw")
    assert is_taken_for_one(bucket, source)
    nothing_is_left(bucket)
