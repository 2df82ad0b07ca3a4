"""Campaigns are left out by default; the tests that stay have each choice once, or each two choices together."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.campaigns import CAMPAIGN, USUAL, campaign, every, examples, pairwise, rarely, singly

ROOT = Path(__file__).parent.parent
CHOICES = ["ab", "xyz", (1, 2, 3, 4)]


def usual(parameters: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(one.values) for one in parameters if not one.marks]


@pytest.mark.parametrize(("choose", "together", "most"), [(singly, 1, 4), (pairwise, 2, 12)])
def test_what_stays_has_every_choice(choose: Any, together: int, most: int) -> None:
    rows = [*product(*CHOICES)]
    parameters = choose(*CHOICES)
    assert [tuple(one.values) for one in parameters] == rows
    parts = lambda rows: {part for row in rows for part in combinations(enumerate(row), together)}  # noqa: E731
    assert parts(usual(parameters)) == parts(rows)
    assert len(usual(parameters)) == most


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_choices_come_about_as_often_as_each_other(sizes: list[int]) -> None:
    taken = usual(singly(*map(range, sizes)))
    assert len(taken) == max(sizes)
    for at, size in enumerate(sizes):
        times = [[row[at] for row in taken].count(value) for value in range(size)]
        assert max(times) - min(times) <= 1


def test_values_that_are_left_to_campaigns() -> None:
    assert usual(rarely([{}, {"a": 1}, {"b": 2}], 2)) == [({},), ({"a": 1},)]
    assert usual(rarely(range(6), lambda n: n % 3 == 0)) == [(0,), (3,)]
    assert usual(campaign((1, 2), (3, 4))) == []


@pytest.mark.parametrize(
    ("profile", "repeated"), [(USUAL, (20, 1, 90, 5)), (CAMPAIGN, (300, 3, 9, 1))]
)
def test_a_campaign_repeats_more(profile: str, repeated: tuple[int, ...]) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert (examples(100), examples(1), every(90), every(5)) == repeated
    finally:
        settings.load_profile(before)


@pytest.mark.campaign
def test_this_is_left_out_by_default() -> None:
    assert settings.get_current_profile_name() == CAMPAIGN


@pytest.mark.parametrize(
    ("options", "is_there"), [((), False), (("--quick",), False), (("--campaigns",), True)]
)
def test_the_options_of_a_run(options: tuple[str, ...], is_there: bool) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", *options, __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("test_this_is_left_out_by_default" in done.stdout) == is_there, done.stdout


def test_quick_tests_are_of_few_rooms() -> None:
    """Neither a room that starts services is collected, nor a test that asks for an oracle."""
    rooms = [
        "tests/docs/test_pages.py",
        "tests/formats/torch",
        "tests/storage/buckets/test_objects.py",
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quick", *rooms]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "tests/formats/torch/" in done.stdout
    assert "test_pages.py::" not in done.stdout
    assert "s3_bucket" not in done.stdout
