"""Shares: every unit is of exactly one part, and no part has much more than the mean."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reshard.planning.parts import Shares

costs = st.integers(1, 1 << 50) | st.integers(1, 30)
atoms = st.lists(st.tuples(costs, st.integers(0, 40)), max_size=40)


def shares_of(made: list[tuple[int, int]], parts: int) -> list[list[tuple[int, range]]]:
    shares = Shares([cost for cost, _ in made], [count for _, count in made], parts)
    return [list(shares.of(part)) for part in range(parts)]


def loads_of(made: list[tuple[int, int]], parts: int) -> list[int]:
    return [
        sum(made[number][0] * len(units) for number, units in share)
        for share in shares_of(made, parts)
    ]


@given(atoms, st.integers(1, 100))
def test_every_unit_is_of_one_part(made: list[tuple[int, int]], parts: int) -> None:
    found = [
        (number, unit)
        for share in shares_of(made, parts)
        for number, units in share
        for unit in units
    ]
    assert sorted(found) == [
        (n, unit) for n, (_, count) in enumerate(made) for unit in range(count)
    ]
    assert shares_of(made, parts) == shares_of(made, parts)


@given(atoms, st.integers(1, 100))
def test_no_part_is_far_above_the_mean(made: list[tuple[int, int]], parts: int) -> None:
    loads = loads_of(made, parts)
    largest = max((cost for cost, count in made if count), default=0)
    mean = sum(loads) / parts
    assert max(loads) <= mean + max(largest, mean / 4) + 2  # 2: all is rounded to whole numbers
    if largest <= 0.3 * mean:
        assert max(loads) <= 1.3 * mean + 2


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_no_part_is_far_above_the_best_possible(whole: list[int], parts: int) -> None:
    best = min(
        max(sum(c for c, at in zip(whole, chosen, strict=True) if at == p) for p in range(parts))
        for chosen in itertools.product(range(parts), repeat=len(whole))
    )
    assert max(loads_of([(cost, 1) for cost in whole], parts)) <= best * 4 / 3 + 2


@given(st.integers(1, 100), st.integers(1, 1 << 40))
def test_parts_of_many_equal_units_differ_by_one(parts: int, cost: int) -> None:
    counts = [load // cost for load in loads_of([(cost, 1000)], parts)]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 1


def test_a_unit_above_the_mean_is_alone_in_its_part() -> None:
    made = [(1, 500), (1000, 1), (1, 500)]
    shares = shares_of(made, 4)
    assert [(1, range(1))] in shares
    assert sorted(loads_of(made, 4)) == [333, 333, 334, 1000]
