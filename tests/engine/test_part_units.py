"""Parts of a plan: every unit is of exactly one part, and parts weigh about the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.read_tasks import ALL, part_ranges
from reshard.storage.parts import Part

weights = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20)


@given(weights, st.lists(st.integers(0, 50), min_size=20, max_size=20), st.integers(1, 40))
def test_every_unit_is_of_one_part(weights: list[int], units: list[int], parts: int) -> None:
    found = [
        (number, unit)
        for part in range(1, parts + 1)
        for number, of in enumerate(part_ranges(Part(part, parts), weights))
        for unit in of.units(units[number])
    ]
    expected = [(n, unit) for n in range(len(weights)) for unit in range(units[n])]
    assert sorted(found) == expected
    assert found == expected  # parts follow one another


@given(weights, st.integers(1, 40))
def test_one_part_has_all(weights: list[int], units: int) -> None:
    assert all(of.units(units) == range(units) for of in part_ranges(ALL, weights))


@given(st.integers(1, 100), st.integers(1, 1 << 40))
def test_parts_of_many_equal_units_differ_by_one(parts: int, weight: int) -> None:
    counts = [
        len(of.units(1000))
        for p in range(1, parts + 1)
        for of in part_ranges(Part(p, parts), [weight])
    ]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 1
