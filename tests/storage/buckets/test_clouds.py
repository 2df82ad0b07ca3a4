"""What is known of the requests of each cloud; ``test_counts.py`` and ``test_objects.py`` compare it with what is asked."""

from __future__ import annotations

import pytest

from reshard.storage.base import ON_DISK
from reshard.storage.buckets.clouds import CLOUDS, SCHEMES, Scheme
from reshard.storage.target import traits_at, upload_parts

MIB = 1 << 20


def test_every_cloud_is_known_and_has_a_limit() -> None:
    assert set(CLOUDS) == set(SCHEMES)
    assert all(
        requests.rates is not None for requests in (cloud.requests for cloud in CLOUDS.values())
    )
    for scheme in SCHEMES:
        assert traits_at(f"{scheme}://bucket/folder").requests == CLOUDS[scheme].requests


def test_a_disk_has_no_requests() -> None:
    assert ON_DISK.requests.rates is None
    assert not ON_DISK.by_requests


@pytest.mark.parametrize(("scheme", "requests"), [("s3", 1), ("gs", 600), ("az", 3)])
def test_deletions_are_planned_as_the_cloud_takes_them(scheme: Scheme, requests: int) -> None:
    assert -(-600 // CLOUDS[scheme].requests.deleted_at_once) == requests


@pytest.mark.parametrize(
    ("nbytes", "parts"), [(0, 0), (16 * MIB, 0), (16 * MIB + 1, 3), (40 * MIB, 5), (10**12, 9935)]
)
def test_large_files_are_uploaded_in_parts(nbytes: int, parts: int) -> None:
    assert upload_parts(traits_at("s3://bucket/file"), nbytes) == parts
    assert upload_parts(ON_DISK, nbytes) == 0
