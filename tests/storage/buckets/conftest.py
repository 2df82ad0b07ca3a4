"""A bucket on each of the project's own servers, with little patience: requests that fail do so within seconds."""

from __future__ import annotations

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
def impatient(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket whose requests have half a second, and are not repeated after one."""
    settings = tmp_path / "buckets.toml"
    settings.write_text(f'["{bucket.url}"]\nrequest_timeout_s = 0.5\nretry_timeout_s = 1\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    return bucket
