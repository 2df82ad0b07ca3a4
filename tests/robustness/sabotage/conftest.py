"""The moves that defects are put into."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.robustness.sabotage.moves import MoveCase, Moving, moving


@pytest.fixture
def make(tmp_path):
    """The move of a case, each in a folder of its own."""

    def make_one(case: MoveCase) -> Callable[[int], Moving]:
        def at(n: int) -> Moving:
            folder = tmp_path / str(n)
            folder.mkdir()
            return moving(case, folder)

        return at

    return make_one
