"""The conversions that are disturbed, and what a disturbed one must leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reshard
from reshard.errors import ReshardError
from tests.checkpoint_files import files_without_times
from tests.emulators.buckets import Bucket

TARGET = "run/7"
ROWS = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "rows|cols", "axes": ["x"]}]}

SERVERS = ("s3_bucket", "gcs_bucket")
"""Values of the fixture ``bucket``, for tests that are not tried with both by default."""

CASES: dict[str, dict[str, Any]] = {
    "raw": {"layout": ROWS, "workers": 1},
    "zstd": {"layout": ROWS, "compression": "zstd", "workers": 1},
    "parts": {"to": "safetensors", "file_bytes": "160KiB", "workers": 1},
}
"""A target in chunks, in compressed chunks, and in two objects that are uploaded in parts."""


def convert(bucket: Bucket, source: Path, case: str, target: str = TARGET, **options: Any) -> Any:
    return reshard.convert(source, f"{bucket.url}/{target}", **{**CASES[case], **options})


def keys(bucket: Bucket) -> list[str]:
    """Every object of a bucket, without a request."""
    return list(bucket.emulator.objects.bucket(bucket.name).keys)


def files_of(bucket: Bucket, folder: Path, target: str = TARGET) -> dict[str, bytes]:
    """The objects below a target, without the times that are in some, through a copy in ``folder``."""
    for key in keys(bucket):
        if key.startswith(f"{target}/"):
            found = bucket.emulator.objects.get(bucket.name, key)
            path = folder / key.removeprefix(f"{target}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(found.segments))
    return files_without_times(folder)


def is_taken_for_one(bucket: Bucket, source: Path, target: str = TARGET) -> bool:
    """Whether readers take a target for a checkpoint, which must be whole then."""
    url = f"{bucket.url}/{target}"
    try:
        reshard.inspect(url)
    except ReshardError:
        return False
    assert reshard.verify(url, source).differences == 0
    assert reshard.verify(url).differences == 0
    return True


def nothing_is_left(bucket: Bucket) -> None:
    """No state folder, no unfinished mark, and on S3 no upload that is paid for, as parts are."""
    found = keys(bucket)
    uploads = bucket.emulator.uploads.unfinished.values()
    assert bucket.scheme != "s3" or not [
        one.key for one in uploads if one.bucket == bucket.name and one.parts
    ]
    assert not [key for key in found if not key.startswith(f"{TARGET}/")]
    assert f"{TARGET}/reshard_unfinished.txt" not in found


def emptied(bucket: Bucket) -> None:
    """Removes every object and upload of a bucket, and forgets requests and faults."""
    server = bucket.emulator
    server.faults.clear()
    for key in keys(bucket):
        server.objects.delete(bucket.name, key, lambda _: None)
    server.uploads.unfinished.clear()
    server.log.clear()
