"""When the workers of a plan are threads of several processes, and what that takes of the memory."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from reshard.errors import MemoryBudgetError
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_multi_plan, smallest_memory
from reshard.planning.plans import MultiPlan, Side, TensorPlan
from reshard.planning.task_cost import (
    MEMORY_PARTS,
    PAYING_BYTES,
    PROCESS_BYTES,
    plan_with_processes,
)

GIB = 1 << 30
ROWS = PAYING_BYTES // (4 << 15)
"""Rows of a tensor of just PAYING_BYTES, with 1 << 15 columns."""


def wanted(rows: int = ROWS, columns: int = 1024, *, raw: bool = True) -> WantedPiece:
    """Chunks of whole rows to chunks of so many whole columns."""
    shape = (rows, 1 << 15)
    source = TensorSpec(
        "w", shape, "float32", Grid.regular(shape, (1024, 1 << 15)), (1024, 1 << 15)
    )
    target = TensorSpec(
        "w", shape, "float32", Grid.regular(shape, (rows, columns)), (rows, columns)
    )
    return WantedPiece(
        Piece.whole(source, target),
        Side(source, "zstd:1", False, 1 << 20),
        Side(target, "raw" if raw else "zstd:3", raw, 0 if raw else 1 << 16),
    )


def planned(one: WantedPiece, max_memory: int, workers: int):
    plan_with = partial(make_multi_plan, [[one]], max_memory, workers, 0)
    return plan_with_processes(plan_with, max_memory)


@pytest.mark.parametrize(
    ("workers", "max_memory", "processes"),
    [
        (4, GIB, 0),  # one interpreter keeps up
        (5, GIB, 2),
        (8, GIB, 2),
        (9, GIB, 3),
        (16, GIB, 4),
        (64, GIB, 4),  # no more than a quarter of the memory
        (16, GIB // 2, 2),
        (16, GIB // 2 - 1, 0),
    ],
)
def test_processes_are_as_many_as_help_and_memory_allows(workers, max_memory, processes):
    plan = planned(wanted(), max_memory, workers)
    assert (plan.processes, plan.workers) == (processes, workers)
    assert plan.max_memory == max_memory - processes * PROCESS_BYTES
    assert plan.peak_bytes <= plan.max_memory


def test_a_small_conversion_stays_with_threads():
    assert planned(wanted(ROWS - 1024), GIB, 16).processes == 0


def test_a_task_above_its_share_stays_with_threads():
    """Its buffers and those that wait in other processes would be more than the memory."""
    plan = planned(wanted(raw=False), GIB, 16)
    assert plan.processes == 0
    assert plan.plans[0].tensors[0].fills[0].price.task_bytes > plan.max_memory // 16


def test_a_tensor_that_fits_only_without_processes_stays_with_threads():
    one = wanted(columns=1 << 13, raw=False)
    budget = smallest_memory(one)
    assert budget > 2 * MEMORY_PARTS * PROCESS_BYTES
    with pytest.raises(MemoryBudgetError):
        make_multi_plan([[one]], budget, 5, processes=2)
    assert planned(one, budget, 5).processes == 0


def test_nothing_is_read_twice_for_the_sake_of_processes():
    def plan_with(processes: int) -> MultiPlan:
        plan = make_multi_plan([[wanted()]], GIB, 16, processes=processes)
        (move,) = plan.plans[0].fills
        price = replace(move.price, decoded_bytes=move.price.decoded_bytes + processes)
        return MultiPlan.alone(
            replace(plan.plans[0], tensors=(TensorPlan((replace(move, price=price),)),))
        )

    assert plan_with(4).processes == 4
    assert plan_with_processes(plan_with, GIB).processes == 0
