"""A storage root in a bucket for tests: in this process, and for server processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import obstore
import pytest

import reshard
from tests.emulators.buckets import SECRETS, Bucket
from tests.server.checkpoint import TREE

PREFIX = "team/a"
MARKER = "commit_success.txt"
CREDENTIALS = (*SECRETS.values(), "key-of-the-s3-tests")
"""What must be in no answer, log, page or record."""


EACH_CLOUD = pytest.mark.parametrize("bucket", ["s3_bucket", "gcs_bucket"], indirect=True)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of S3, or of the cloud that the test names."""
    found: Bucket = request.getfixturevalue(getattr(request, "param", "s3_bucket"))
    return found


@pytest.fixture
def root_url(bucket: Bucket) -> str:
    """The URL of the root ``data``."""
    return f"{bucket.url}/{PREFIX}"


@pytest.fixture
def impatient(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket whose requests are repeated for a second only."""
    settings = tmp_path / "buckets.toml"
    settings.write_text(f'["{bucket.url}"]\nrequest_timeout_s = 60\nretry_timeout_s = 1\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    return bucket


def put(bucket: Bucket, *keys: str) -> None:
    """Small objects below the root."""
    for key in keys:
        obstore.put(bucket.store(), f"{PREFIX}/{key}", b"{}", use_multipart=False)


def delete(bucket: Bucket, *keys: str) -> None:
    obstore.delete(bucket.store(), [f"{PREFIX}/{key}" for key in keys])


def keys_below(bucket: Bucket, folder: str) -> list[str]:
    """The keys of what is in a folder of the root, from the root."""
    pages = obstore.list(bucket.store(), f"{PREFIX}/{folder}")
    return sorted(one["path"].removeprefix(f"{PREFIX}/") for page in pages for one in page)


def mark(bucket: Bucket, *folders: str, markers: Iterable[str] = (MARKER,)) -> None:
    """What a checkpoint is recognised by; the marker comes last."""
    for folder in folders:
        names = ("_METADATA", "_CHECKPOINT_METADATA", *markers)
        put(bucket, *(f"{folder}/{name}" for name in names))


def save(bucket: Bucket, folder: Path, name: str, *, marker: bool = True) -> None:
    """A real checkpoint at a name below the root, made in a local folder."""
    local = folder / "made"
    if not local.exists():
        reshard.save(local, TREE)
    files = sorted(p for p in local.rglob("*") if p.is_file())
    for path in sorted(files, key=lambda path: path.name == MARKER):
        if path.name != MARKER or marker:
            key = f"{PREFIX}/{name}/{path.relative_to(local)}"
            obstore.put(bucket.store(), key, path.read_bytes(), use_multipart=False)
