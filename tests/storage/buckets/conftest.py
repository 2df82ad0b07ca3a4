"""A bucket on each of the project's own servers, with little patience: requests that keep failing end within seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.storage.buckets.store import BucketStore
from tests.emulators.buckets import Bucket


@pytest.fixture(params=["s3_bucket", "gcs_bucket"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket on each server in turn."""
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(bucket: Bucket) -> BucketStore:
    return BucketStore(bucket.scheme, bucket.name)


@pytest.fixture
def wait(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many seconds a request to the bucket has, and how long it is repeated."""

    def chosen(request_s: float, retry_s: float) -> None:
        settings = tmp_path / f"{request_s}-{retry_s}.toml"
        settings.write_text(
            f'["{bucket.url}"]\nrequest_timeout_s = {request_s}\nretry_timeout_s = {retry_s}\n'
        )
        monkeypatch.setenv("RESHARD_BUCKETS", str(settings))

    return chosen


@pytest.fixture
def impatient(bucket: Bucket, wait: Callable[..., None]) -> Bucket:
    """A bucket whose requests are not repeated after a second; each has as long as it takes on a slow machine."""
    wait(request_s=30, retry_s=1)
    return bucket
