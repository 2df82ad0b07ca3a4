"""What a plan's prices leave out is added, and the longest task is found; which limit of the clouds holds, for many requests."""

from __future__ import annotations

import pytest

from reshard.planning.estimates import (
    SECONDS_PER_CAST_BYTE,
    limited_seconds,
    processor_time,
)
from reshard.planning.plans import FillAt, MultiPlan, Plan, Read, TensorPlan
from reshard.storage.base import RequestRates, Requests
from tests.planning.timed_plans import GB, move, plan

S3, GS, AZ = RequestRates(5500, 3500), RequestRates(5000, 1000, 1200), RequestRates(20_000, 20_000)


def test_bytes_in_and_out_are_added_to_the_price() -> None:
    found = processor_time(plan(move(3, 4 * GB, 2 * GB), move(1, 1 * GB)), 0.25 / GB, [0.5 / GB])
    # First 3 + 4 × 0.25 + 2 × 0.5 = 5, in four equal tasks; second 1 + 0.25.
    assert found == pytest.approx((5 + 1.25, 5 / 4))


def test_the_largest_task_has_its_share_of_a_move() -> None:
    uneven = move(8, chunks=(0, 5, 8))
    assert processor_time(plan(uneven), 0, [0])[1] == pytest.approx(8 * 5 / 8)


def test_a_cast_costs_time_for_each_byte_of_the_source() -> None:
    found = processor_time(plan(move(0, cast="bfloat16")), 0, [0])
    assert found[0] == pytest.approx(8 * 4 * SECONDS_PER_CAST_BYTE)


def test_targets_that_share_a_read_decode_it_once_and_in_one_task() -> None:
    one, other = move(2, 4 * GB, 1 * GB), move(3, 4 * GB, 2 * GB)
    plans = Plan((TensorPlan((one,)),), 1 << 30, 4), Plan((TensorPlan((other,)),), 1 << 30, 4)
    shared = MultiPlan(plans, (Read.of([FillAt(0, 0), FillAt(1, 0)], [one], one.units),))
    apart = MultiPlan(
        plans,
        (Read.of([FillAt(0, 0)], [one], one.units), Read.of([FillAt(1, 0)], [other], other.units)),
    )
    # 2 + 1 × 0.5 and 3 + 2 × 1 are in both; 4 × 0.25 for reading once or twice.
    costs = 0.25 / GB, [0.5 / GB, 1 / GB]
    assert processor_time(shared, *costs)[0] == pytest.approx(7.5 + 1)
    assert processor_time(shared, *costs)[1] == pytest.approx(8.5 / 4)
    assert processor_time(apart, *costs)[0] == pytest.approx(7.5 + 2)


def test_nothing_takes_no_time() -> None:
    found = processor_time(plan(), 1, [1])
    assert found == (0, 0)


def test_reads_and_writes_have_limits_of_their_own() -> None:
    reads = Requests(list=500, head=5000, get=49_500)
    assert limited_seconds(reads, S3, []) == pytest.approx(55_000 / 5500)
    writes = Requests(put=3000, part=4000, copy=1000, delete=2500)
    assert limited_seconds(writes, None, [S3]) == pytest.approx(10_500 / 3500)
    assert limited_seconds(reads + writes, S3, [S3]) == pytest.approx(10)


def test_the_slower_of_two_clouds_counts() -> None:
    writes = Requests(put=7000)
    assert limited_seconds(writes, GS, [S3]) == pytest.approx(2)
    assert limited_seconds(writes, None, [S3, None, GS]) == pytest.approx(7)
    assert limited_seconds(Requests(get=11_000), AZ, [S3]) == pytest.approx(2)
    assert limited_seconds(Requests(), None, []) == 0


def test_google_doubles_its_limit_every_twenty_minutes() -> None:
    # 1,000/s for 1,200 s, then 2,000/s for 1,200 s, then 4,000/s.
    for puts, seconds in (
        (1_200_000, 1200),
        (2_200_000, 1700),
        (3_600_000, 2400),
        (4_400_000, 2600),
    ):
        assert limited_seconds(Requests(put=puts), None, [GS]) == pytest.approx(seconds)
