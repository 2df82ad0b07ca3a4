"""Limits that clouds publish: which of them holds, and how long many requests take."""

from __future__ import annotations

import pytest

from reshard.planning.store_limits import LIMITS, limited_seconds
from reshard.storage.buckets.urls import SCHEMES
from reshard.storage.requests import Requests


def test_every_cloud_has_a_limit() -> None:
    assert set(LIMITS) == set(SCHEMES)


def test_reads_and_writes_have_limits_of_their_own() -> None:
    reads = Requests(list=500, head=5000, get=49_500)
    assert limited_seconds(reads, ["s3"], []) == pytest.approx(55_000 / 5500)
    writes = Requests(put=3000, part=4000, copy=1000, delete=2500)
    assert limited_seconds(writes, [], ["s3"]) == pytest.approx(10_500 / 3500)
    assert limited_seconds(reads + writes, ["s3"], ["s3"]) == pytest.approx(10)


def test_the_slower_of_two_clouds_counts() -> None:
    writes = Requests(put=7000)
    assert limited_seconds(writes, ["gs"], ["s3"]) == pytest.approx(2)
    assert limited_seconds(writes, [], ["s3", "gs"]) == pytest.approx(7)
    assert limited_seconds(Requests(get=11_000), ["az"], ["s3"]) == pytest.approx(2)
    assert limited_seconds(Requests(), [], []) == 0


def test_google_doubles_its_limit_every_twenty_minutes() -> None:
    # 1,000/s for 1,200 s, then 2,000/s for 1,200 s, then 4,000/s.
    for puts, seconds in (
        (1_200_000, 1200),
        (2_200_000, 1700),
        (3_600_000, 2400),
        (4_400_000, 2600),
    ):
        assert limited_seconds(Requests(put=puts), [], ["gs"]) == pytest.approx(seconds)
