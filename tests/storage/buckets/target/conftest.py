"""The target of a run, in a bucket on each of the project's own servers."""

from __future__ import annotations

import pytest

from reshard.storage.location import Location, locate
from tests.emulators.buckets import Bucket


@pytest.fixture
def target(bucket: Bucket) -> Location:
    return locate(f"{bucket.url}/run/7")
