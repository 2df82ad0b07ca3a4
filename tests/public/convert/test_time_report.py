"""The time of a conversion that a plan tells, on this machine and on several hosts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "trained", {"w": np.ones((64, 64), np.float32)})
    return tmp_path / "trained"


def test_a_plan_tells_the_time_on_this_machine(trained: Path) -> None:
    plan = reshard.plan(trained, workers=1)
    assert plan.time().cores == 1
    assert plan.time().network_s is None
    with pytest.raises(PlanError, match="cores is 0; expected a whole number of at least 1"):
        plan.time(cores=0)
    with pytest.raises(PlanError, match="hosts is 0; expected a whole number of at least 1"):
        plan.time(0)


def test_a_plan_for_hosts_is_one_by_which_each_file_has_one_task(tmp_path: Path) -> None:
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
