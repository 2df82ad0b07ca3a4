"""The restore benchmark runs with every size of tree, and its arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measure import Cost
from benchmarks.restoring.run import ratio, summary, work_s

ROOT = Path(__file__).parents[3]


def cost(work, peak, read, needed=None):
    return Cost(work + 1.5, 0.5, 1.0, 1.0, peak, 0.0, read, needed)


def test_ratios_are_medians_over_rounds() -> None:
    costs = {
        "orbax": [cost(2, 100, 20), cost(4, 100, 20), cost(10, 100, 20)],
        "reshard": [cost(1, 50, 10, 10), cost(1, 60, 10, 10), cost(1, 70, 10, 10)],
        "floor": [cost(0.5, 40, 10, 10), cost(0.8, 40, 10, 10), cost(1, 40, 10, 10)],
    }
    assert ratio(costs, work_s) == pytest.approx(0.25)
    lines = summary(costs)
    assert lines[2] == "| orbax | 4.00 | 5.00 | 100 | 2.000 |"
    assert lines[3] == "| reshard | 1.00 | 2.00 | 60 | 1.000 |"
    assert lines[5] == "| reshard / orbax | 0.25 | 0.40 | 0.60 | |"
    assert lines[6] == "| reshard / floor | 1.25 | | | |"


@pytest.mark.campaign
@pytest.mark.xdist_group("benchmarks")
def test_it_measures_a_tiny_tree(tmp_path) -> None:
    words = ["--size", "tiny", "--rounds", "1", "--digests", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restoring.run", *words],
        check=True, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "| reshard / orbax |" in done.stdout
    assert "| reshard / floor |" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    ours, floor = found["rounds"]["reshard"][0], found["rounds"]["floor"][0]
    assert 0 < ours["needed_mib"] <= ours["read_mib"]
    assert floor["needed_mib"] == ours["needed_mib"]
    assert found["rounds"]["orbax"][0]["read_mib"] > 0
