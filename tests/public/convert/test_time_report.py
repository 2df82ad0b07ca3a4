"""The time of a conversion on several hosts: planned beside actual."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError
from tests.spread_executor import SpreadExecutor


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "trained", {"w": np.ones((64, 64), np.float32)})
    return tmp_path / "trained"


def test_a_report_has_the_time_that_was_planned(trained: Path, tmp_path: Path) -> None:
    with SpreadExecutor() as executor:
        report = reshard.convert(trained, tmp_path / "served", executor=executor, workers=2)
        again = reshard.convert(trained, tmp_path / "served", executor=executor, workers=2)
    assert report.time is not None
    here = reshard.plan(trained, workers=2).time(3)
    assert report.time.planned.cores == here.cores
    assert report.time.planned.cores_s == pytest.approx(here.cores_s, rel=0.5)
    assert report.time.planned.hosts == 3
    assert report.time.actual_s > 0
    assert again.already_done
    assert again.time is None


def test_of_several_targets_the_time_is_that_of_all(trained: Path, tmp_path: Path) -> None:
    targets = [reshard.Target(tmp_path / name) for name in "ab"]
    planned = reshard.plan_all(trained, targets, workers=2).time(3)
    with SpreadExecutor() as executor:
        found = reshard.convert_all(trained, targets, executor=executor, workers=2)
    assert found.time is not None
    assert found.time.planned.hosts == planned.hosts == 3
    assert found.time.planned.cores_s == pytest.approx(planned.cores_s, rel=0.5)
    assert [report.time for report in found.reports] == [None, None]


def test_one_host_has_no_such_report(trained: Path, tmp_path: Path) -> None:
    assert reshard.convert(trained, tmp_path / "a").time is None
    with ThreadPoolExecutor(1) as executor:
        assert reshard.convert(trained, tmp_path / "b", executor=executor).time is None


def test_a_plan_tells_the_time_on_this_machine(trained: Path) -> None:
    plan = reshard.plan(trained, workers=1)
    assert plan.time().cores == 1
    assert plan.time().network_s is None
    with pytest.raises(PlanError, match="cores is 0; expected a whole number of at least 1"):
        plan.time(cores=0)
    with pytest.raises(PlanError, match="hosts is 0; expected a whole number of at least 1"):
        plan.time(0)


def test_a_plan_for_hosts_is_the_one_that_they_carry_out(tmp_path: Path) -> None:
    trained = tmp_path / "large"
    reshard.save(trained, {"w": np.ones((2048, 1024), np.float32)})
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": [None, "x"]}]}
    alone = reshard.plan(trained, layout=layout, workers=2)
    planned = reshard.plan(trained, tmp_path / "t", layout=layout, workers=2, hosts=3)
    assert {tensor.strategy for tensor in alone.tensors} & {"scatter", "weave"}
    assert {tensor.strategy for tensor in planned.tensors} == {"block"}
    targets = [reshard.Target(tmp_path / "t", layout=layout)]
    assert reshard.plan_all(trained, targets, workers=2, hosts=3).plans[0].plan == planned.plan
    for wrong in (0, True, "3"):
        with pytest.raises(
            PlanError, match=f"hosts is {wrong!r}; expected a whole number of at least 1"
        ):
            reshard.plan(trained, hosts=wrong)
        with pytest.raises(PlanError, match="hosts that share the work, such as 16"):
            reshard.plan_all(trained, targets, hosts=wrong)
