"""Processor time: what a plan's prices leave out is added, and the longest task is found."""

from __future__ import annotations

import pytest

from reshard.planning.multi_plan import FillAt, MultiPlan, Read
from reshard.planning.processor_time import SECONDS_PER_CAST_BYTE, processor_time
from reshard.planning.tensor_plan import Plan, TensorPlan
from tests.planning.timed_plans import GB, move, plan


def test_bytes_in_and_out_are_added_to_the_price() -> None:
    found = processor_time(plan(move(3, 4 * GB, 2 * GB), move(1, 1 * GB)), 0.25 / GB, [0.5 / GB])
    # First 3 + 4 × 0.25 + 2 × 0.5 = 5, in four equal tasks; second 1 + 0.25.
    assert found.total_s == pytest.approx(5 + 1.25)
    assert found.longest_task_s == pytest.approx(5 / 4)


def test_the_largest_task_has_its_share_of_a_move() -> None:
    uneven = move(8, chunks=(0, 5, 8))
    assert processor_time(plan(uneven), 0, [0]).longest_task_s == pytest.approx(8 * 5 / 8)


def test_a_cast_costs_time_for_each_byte_of_the_source() -> None:
    found = processor_time(plan(move(0, cast="bfloat16")), 0, [0])
    assert found.total_s == pytest.approx(8 * 4 * SECONDS_PER_CAST_BYTE)


def test_targets_that_share_a_read_decode_it_once_and_in_one_task() -> None:
    one, other = move(2, 4 * GB, 1 * GB), move(3, 4 * GB, 2 * GB)
    plans = Plan((TensorPlan((one,)),), 1 << 30, 4), Plan((TensorPlan((other,)),), 1 << 30, 4)
    shared = MultiPlan(plans, (Read.of([FillAt(0, 0), FillAt(1, 0)], one),))
    apart = MultiPlan(plans, (Read.of([FillAt(0, 0)], one), Read.of([FillAt(1, 0)], other)))
    # 2 + 1 × 0.5 and 3 + 2 × 1 are in both; 4 × 0.25 for reading once or twice.
    costs = 0.25 / GB, [0.5 / GB, 1 / GB]
    assert processor_time(shared, *costs).total_s == pytest.approx(7.5 + 1)
    assert processor_time(shared, *costs).longest_task_s == pytest.approx(8.5 / 4)
    assert processor_time(apart, *costs).total_s == pytest.approx(7.5 + 2)


def test_nothing_takes_no_time() -> None:
    found = processor_time(plan(), 1, [1])
    assert (found.total_s, found.longest_task_s) == (0, 0)
