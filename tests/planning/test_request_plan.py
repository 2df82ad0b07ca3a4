from __future__ import annotations

import pytest

from reshard.planning.request_plan import RequestPlan
from reshard.storage.requests import Requests

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
