"""What metadata leaves of a budget."""

from __future__ import annotations

import pytest

from reshard.errors import MemoryBudgetError
from reshard.planning.task_cost import INCLUDED_BYTES, bytes_beside, counted_bytes

MIB = 1 << 20


def test_little_metadata_is_not_counted():
    assert counted_bytes(INCLUDED_BYTES) == 0
    assert bytes_beside(INCLUDED_BYTES, 10 * MIB, "3 leaves in 'c'", 12 * MIB) == 10 * MIB


def test_much_metadata_takes_its_part_of_the_budget():
    assert bytes_beside(INCLUDED_BYTES + 20 * MIB, 64 * MIB, "it", 1) == 44 * MIB


def test_metadata_that_leaves_too_little_is_refused_with_the_budget_that_works():
    with pytest.raises(MemoryBudgetError) as caught:
        bytes_beside(INCLUDED_BYTES + 60 * MIB, 64 * MIB, "9,000 leaves in 'c'", 12 * MIB)
    assert str(caught.value) == (
        "the metadata of 9,000 leaves in 'c' takes 76 MiB in memory, of which 16 MiB are not counted, and buffers at least 12 MiB, but 64 MiB "
        "are allowed; allow max_memory of 72MiB"
    )
    assert caught.value.smallest_bytes == 72 * MIB
    smallest = caught.value.smallest_bytes
    assert bytes_beside(INCLUDED_BYTES + 60 * MIB, smallest, "it", 12 * MIB) == 12 * MIB
