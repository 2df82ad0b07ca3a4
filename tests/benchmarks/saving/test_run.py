"""The benchmark of saving runs, with every saver, on the smallest tree."""

from __future__ import annotations

import pytest

from benchmarks.saving.run import COLUMNS, SAVERS, save_once, table


@pytest.mark.campaign
def test_every_saver_saves_and_says_what_it_took(tmp_path):
    costs = {who: [save_once(who, "tiny", tmp_path)] for who in SAVERS}
    for (cost,) in costs.values():
        assert set(COLUMNS) <= cost.keys()
        assert cost["written_mib"] > 0.5
    assert not list(tmp_path.iterdir())
    assert table(costs).splitlines()[2].endswith("| 1.00 |")
