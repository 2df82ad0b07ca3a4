"""The repetitions of a test: a few by default, all in a campaign (``make campaigns``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import settings

USUAL, CAMPAIGN = "usual", "campaign"
"""Profiles of Hypothesis, which ``tests/conftest.py`` registers."""


def examples(usual: int) -> int:
    """As many examples of Hypothesis as the profile takes where 100 are usual; for a test whose examples cost more."""
    return max(1, usual * settings.default.max_examples // 100)


def every(usual: int) -> int:
    """The distance of the places that are tried; a tenth of it in a campaign, so that small distances become 1."""
    is_campaign = settings.get_current_profile_name() == CAMPAIGN
    return max(1, usual // 10) if is_campaign else usual


def rarely(values: Sequence[Any], usual: int | Callable[[Any], bool] = 1) -> list[Any]:
    """The values as parameters; all but the first ``usual`` ones, or those that it takes, are left to campaigns."""
    is_usual = usual if callable(usual) else values[:usual].__contains__
    return [_parameter((value,), is_usual(value)) for value in values]


def campaign(*rows: tuple[Any, ...]) -> list[Any]:
    """The values of several parameters, which are left to campaigns."""
    return [_parameter(row, is_usual=False) for row in rows]


def singly(*choices: Sequence[Any]) -> list[Any]:
    """All combinations of choices as parameters; those are left to campaigns that are not needed for each choice to come once."""
    return _covering(choices, 1)


def pairwise(*choices: Sequence[Any]) -> list[Any]:
    """All combinations of choices as parameters; those are left to campaigns that are not needed for each two choices to come together."""
    return _covering(choices, 2)


def _covering(choices: Sequence[Sequence[Any]], together: int) -> list[Any]:
    """Takes the combination that has most of what is missing, and of several the one whose choices came least: always the same ones."""
    rows = list(product(*(range(len(values)) for values in choices)))
    has = {row: set(combinations(enumerate(row), together)) for row in rows}
    missing, came = set().union(*has.values()), Counter[tuple[int, int]]()
    taken = set()
    while missing:
        best = max(
            rows,
            key=lambda row: (len(has[row] & missing), -sum(came[one] for one in enumerate(row))),
        )
        missing -= has[best]
        came.update(enumerate(best))
        taken.add(best)
    found = {row: [values[at] for values, at in zip(choices, row, strict=True)] for row in rows}
    return [_parameter(one, row in taken, "-".join(map(_named, one))) for row, one in found.items()]


def _named(value: Any) -> str:
    return str(next((getattr(value, n) for n in ("__name__", "name", "id") if hasattr(value, n)), value))  # fmt: skip


def _parameter(values: Sequence[Any], is_usual: bool, named: str | None = None) -> Any:
    return pytest.param(*values, marks=() if is_usual else pytest.mark.campaign, id=named)
