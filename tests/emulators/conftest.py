"""A bucket on each of the servers, for what all of them must do alike."""

from __future__ import annotations

import pytest

from tests.emulators.buckets import Bucket

SERVERS = [
    pytest.param("s3_bucket", id="S3"),
    pytest.param("gcs_bucket", id="GCS"),
    pytest.param("moto_bucket", id="moto", marks=pytest.mark.xdist_group("moto")),
    pytest.param("azurite_bucket", id="Azurite", marks=pytest.mark.xdist_group("azurite")),
]


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket on each server in turn."""
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=SERVERS[:2])
def own_bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket on each of the project's own servers."""
    found: Bucket = request.getfixturevalue(request.param)
    return found
