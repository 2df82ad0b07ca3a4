"""The target of a run, in a bucket on each of the project's own servers."""

from __future__ import annotations

import pytest

from reshard.storage.buckets import lease, segments
from reshard.storage.location import Location, locate
from tests.emulators.buckets import Bucket


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is put and no lease renewed because time has passed: on a slow machine there would be more of them."""
    monkeypatch.setattr(segments, "FLUSH_S", 1e9)
    monkeypatch.setattr(lease, "BEAT_S", 1e9)


@pytest.fixture
def target(bucket: Bucket) -> Location:
    return locate(f"{bucket.url}/run/7")
