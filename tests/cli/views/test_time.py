from __future__ import annotations

from msgspec.structs import replace

from reshard import TimePlan
from reshard.cli.views.report import planned_time
from tests.cli.show import lines, show

PLAN = TimePlan(16, 8, 12.5e9, 42.0, 20.0, 3.0)


def test_a_plan_tells_its_time_and_its_bottleneck() -> None:
    assert lines(planned_time(PLAN)) == [
        "time: about 42 s on 16 hosts × 8 cores: cores 42 s, network 20 s, store 3.0 s; the cores are the bottleneck"
    ]
    (line,) = lines(planned_time(replace(PLAN, network_s=200.0)))
    assert line.startswith("time: about 3 min 20 s on 16 hosts")
    assert line.endswith("; the network is the bottleneck")
    assert lines(planned_time(None)) == []


def test_a_plan_tells_what_it_does_not_count() -> None:
    found = lines(planned_time(TimePlan(1, 1, None, 0.5)))
    assert found == [
        "time: about 0.5 s on 1 host × 1 core: cores 0.5 s; the cores are the bottleneck",
        "not counted: the network (--nic gives its speed), the speed of the file system",
    ]
    found = lines(planned_time(TimePlan(2, 1, 1e9, 0.5, 1.5)))
    assert found[1] == "not counted: the speed of the file system"


def test_they_fit_80_columns() -> None:
    views = planned_time(TimePlan(1000, 16, None, 4000.0))
    assert max(map(len, show(views, 80).splitlines())) <= 80
