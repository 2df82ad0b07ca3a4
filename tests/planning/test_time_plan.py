"""The time of a conversion on many hosts: the arithmetic, the bottleneck, and what more hosts change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.planning.estimates import Hosts, RequestPlan, TimePlan, plan_time
from reshard.planning.plans import FillAt, MultiPlan, Plan, Read, TensorPlan
from reshard.storage.base import Requests, RequestTraits
from reshard.storage.buckets.clouds import CLOUDS
from tests.planning.timed_plans import GB, move, plan

DISK = RequestTraits()
FILES = (DISK, [DISK])
S3 = (CLOUDS["s3"].requests, [CLOUDS["s3"].requests])


def test_processors_share_the_work_of_files() -> None:
    # 10 s of price, 8 GB in and 4 GB out at 4 GB/s: 13 s for 2 × 4 processors.
    planned = plan(move(10, 8 * GB, 4 * GB, chunks=tuple(range(9))), workers=4)
    found = plan_time(planned, *FILES, Hosts(2, 4))
    assert found.cores_s == pytest.approx(13 / 8)
    assert (found.hosts, found.cores, found.network_s, found.store_s) == (2, 4, None, None)
    assert (found.seconds, found.bottleneck) == (found.cores_s, "cores")


def test_a_processor_without_a_worker_does_nothing() -> None:
    planned = plan(move(8, chunks=tuple(range(9))), workers=2)
    found = plan_time(planned, *FILES, Hosts(1, 64))
    assert (found.cores, found.cores_s) == (2, 4)
    assert plan_time(planned, *FILES, Hosts(1, 1)).cores_s == 8


def test_no_number_of_hosts_is_faster_than_the_longest_task() -> None:
    planned = plan(move(16, chunks=(0, 4, 8)), move(1), workers=4)
    assert plan_time(planned, *FILES, Hosts(1000, 4)).cores_s == 8


def test_the_busier_direction_of_each_hosts_network_counts() -> None:
    planned = plan(move(0, 8 * GB, 4 * GB))
    assert plan_time(planned, *FILES, Hosts(4, 4, 1e9)).network_s == pytest.approx(8 / 4)
    planned = plan(move(0, 2 * GB, 12 * GB))
    assert plan_time(planned, *FILES, Hosts(4, 4, 1e9)).network_s == pytest.approx(12 / 4)


def test_on_one_host_only_the_bytes_of_buckets_cross_the_network() -> None:
    planned, one = plan(move(0, 8 * GB, 4 * GB)), Hosts(1, 4, 1e9)
    assert plan_time(planned, *FILES, one).network_s == 0
    from_bucket = RequestPlan(data=Requests(get=1000, received_bytes=6 * GB))
    source, target = S3[0], FILES[1]
    assert plan_time(planned, source, target, one, from_bucket).network_s == pytest.approx(6)
    two = Hosts(2, 4, 1e9)
    to_files = RequestPlan(data=Requests(get=1, received_bytes=1 * GB))
    assert plan_time(planned, source, target, two, to_files).network_s == pytest.approx(4 / 2)


def test_requests_wait_for_answers_in_all_workers() -> None:
    requests = RequestPlan(Requests(list=5), Requests(get=64), Requests(get=800), workers=16)
    planned = plan(move(0), workers=4)
    found = plan_time(planned, *S3, Hosts(2, 4), requests, latency_s=0.1)
    # 5 one by one, 64 in two rounds of 32, 800 by 2 × 4 workers.
    assert found.store_s == pytest.approx(0.1 * (5 + 2 + 100))


def test_the_limit_of_the_cloud_holds_however_many_hosts_there_are() -> None:
    requests = RequestPlan(data=Requests(get=55_000, put=70_000))
    found = [
        plan_time(plan(move(0)), *S3, Hosts(hosts, 4), requests).store_s for hosts in (500, 1000)
    ]
    assert found == [pytest.approx(70_000 / 3500)] * 2


def test_what_the_store_copies_itself_costs_neither_processors_nor_network() -> None:
    planned, hosts = plan(move(0, 8 * GB, 8 * GB), workers=4), Hosts(2, 4, 1e9)
    copied = RequestPlan(data=Requests(copy=8))
    found = plan_time(planned, *S3, hosts, copied)
    assert (found.cores_s, found.network_s) == (0, 0)
    # 8 GB in and 8 out at 0.8 GB/s each, of which half arrives: 10 s in four equal tasks.
    half = RequestPlan(data=Requests(get=8, put=8, received_bytes=4 * GB, sent_bytes=4 * GB))
    found = plan_time(planned, *S3, hosts, half)
    assert (found.cores_s, found.network_s) == (pytest.approx(10 / 4), pytest.approx(4 / 2))


def test_requests_that_are_not_known_count_as_all_bytes() -> None:
    found = plan_time(plan(move(0, 8 * GB, 4 * GB)), *S3, Hosts(1, 4, 1e9))
    assert (found.network_s, found.store_s) == (pytest.approx(8), None)


def test_of_several_targets_those_in_buckets_are_sent() -> None:
    here, there = move(0, 8 * GB, 3 * GB), move(0, 8 * GB, 5 * GB)
    plans = Plan((TensorPlan((here,)),), 1 << 30, 4), Plan((TensorPlan((there,)),), 1 << 30, 4)
    shared = MultiPlan(plans, (Read.of([FillAt(0, 0), FillAt(1, 0)], [here], here.units),))
    sent = RequestPlan(data=Requests(put=5, sent_bytes=5 * GB))
    ends = DISK, [DISK, CLOUDS["gs"].requests]
    assert plan_time(shared, *ends, Hosts(1, 4, 1e9), sent).network_s == pytest.approx(5)
    assert plan_time(shared, *ends, Hosts(4, 4, 1e9), sent).network_s == pytest.approx(2)


@pytest.mark.parametrize(
    ("nic", "puts", "expected"),
    [(10e9, 10, "cores"), (0.01e9, 10, "network"), (10e9, 70_000_000, "store")],
)
def test_the_bottleneck_is_what_takes_longest(nic: float, puts: int, expected: str) -> None:
    planned = plan(move(40, 1 * GB, 1 * GB, chunks=tuple(range(9))))
    requests = RequestPlan(data=Requests(put=puts, received_bytes=GB, sent_bytes=GB))
    found = plan_time(planned, *S3, Hosts(1, 4, nic), requests)
    assert found.bottleneck == expected
    assert found.seconds == found.by_part[found.bottleneck] == max(found.by_part.values())


def test_of_equal_ones_the_first_is_named() -> None:
    assert TimePlan(1, 1, 1.0, 2.0, 2.0, 2.0).bottleneck == "cores"
    assert TimePlan(1, 1, 1.0, 1.0, 2.0, 2.0).bottleneck == "network"
    assert TimePlan(1, 1, None, 0.0).bottleneck == "cores"


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 100 * GB), st.integers(0, 100 * GB))),
    st.sampled_from([FILES, S3, (S3[0], FILES[1]), (FILES[0], S3[1])]),
    st.integers(2, 500),
    st.integers(1, 500),
    st.integers(0, 10**8),
)
def test_more_hosts_are_never_slower(
    prices: list[tuple[float, int, int]],
    places: tuple[RequestTraits, list[RequestTraits]],
    hosts: int,
    more: int,
    requests: int,
) -> None:
    planned = plan(*(move(*price) for price in prices))
    asked = RequestPlan(data=Requests(get=requests, put=requests, received_bytes=GB))
    few, many = (
        plan_time(planned, *places, Hosts(count, 4, 1e9), asked) for count in (hosts, hosts + more)
    )
    for part, seconds in few.by_part.items():
        assert 0 <= many.by_part[part] <= seconds * (1 + 1e-9)
    assert many.seconds <= few.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("hosts", "cores", "nic", "text"),
    [
        (0, 1, None, r"hosts is 0; expected a whole number of at least 1 \(hosts that share the work, such as 16\)"),
        (True, 1, None, "hosts is True; expected a whole number"),
        (1, 0, None, r"cores is 0; expected a whole number of at least 1 \(processors of each host, such as 8\)"),
        (10**400, 1, None, "there are more than 1,000,000 hosts, or cores in a host; expected at most so many of each"),
        (1, 1, 0, "nic_bytes_per_s is 0; expected bytes per second above 0, such as 12.5e9, or None if it is not known"),
        (1, 1, "12.5GB/s", "nic_bytes_per_s is '12.5GB/s'; expected bytes per second above 0"),
        (1, 1, float("nan"), "nic_bytes_per_s is nan; expected bytes per second above 0"),
        (1, 1, 10**400, "expected bytes per second above 0"),
    ],
)  # fmt: skip
def test_hosts_that_are_not_possible(hosts: Any, cores: Any, nic: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Hosts.checked(hosts, cores, nic)


def test_hosts_that_are_possible() -> None:
    assert Hosts.checked(16, 8, 12.5e9) == Hosts(16, 8, 12.5e9)
    assert replace(Hosts(), count=2) == Hosts.checked(2, 1, None)


MB = 1_000_000


def test_latency_or_bandwidth_decides_the_time() -> None:
    steps, data = Requests(list=5, head=5), Requests(get=100, put=100, sent_bytes=300 * MB)
    plan = RequestPlan(steps, Requests(get=64), data, workers=10)
    assert plan.seconds(0.1, 1e15) == pytest.approx(0.1 * (10 + 2) + 0.1 * 20)
    assert plan.seconds(0.0001, 100 * MB) == pytest.approx(3, abs=0.01)
    assert plan.seconds() == plan.seconds(plan.LATENCY_S, plan.BYTES_PER_S)
    both_ways = RequestPlan(data=Requests(received_bytes=100 * MB, sent_bytes=100 * MB))
    assert both_ways.seconds(0, 100 * MB) == pytest.approx(1)


def test_a_long_run_renews_its_lease_and_puts_records() -> None:
    data = Requests(put=1, sent_bytes=4100 * MB)
    plan = RequestPlan(data=data, targets=2, segment_deletes=1)
    assert plan.requests(0, 1000 * MB) == data
    found = plan.requests(0, 100 * MB) - data  # 41 s: 5 renewals and 8 segments of each target
    assert found == Requests(head=10, put=10 + 16, delete=16)
