from __future__ import annotations

from msgspec.structs import replace

from reshard import RequestPlan, RequestReport, Requests
from reshard.cli.views.report import planned_requests, report_view
from tests.cli.show import lines, show
from tests.cli.specimens import report, tensor_report

DATA = Requests(get=1040, put=8, received_bytes=300_000_000, sent_bytes=150_000_000)


def test_a_plan_tells_its_requests() -> None:
    plan = RequestPlan(Requests(list=2, head=1), data=DATA, workers=4)
    line = " ".join(lines(planned_requests(plan.on_link())))
    assert line == (
        "requests: at most 1,051 to buckets (2 list, 1 head, 1,040 get, 8 put); 286 MiB in, 143 MiB out; about 7.9 s at 30 ms and 150 MB/s"
    )
    line = " ".join(lines(planned_requests(plan.on_link(latency_s=0.001, bytes_per_s=30e6))))
    assert line.endswith("about 10 s at 1 ms and 30 MB/s")
    assert lines(planned_requests(None)) == []


def test_a_report_compares_them() -> None:
    found = replace(
        report(tensor_report("a")), requests=RequestReport(DATA, replace(DATA, get=1039))
    )
    text = lines(report_view(found, False))
    assert "requests get put total in out" in text
    assert "planned at most 1,040 8 1,048 286 MiB 143 MiB" in text
    assert "made 1,039 8 1,047 286 MiB 143 MiB" in text
    assert max(map(len, show(report_view(found, False), 80).splitlines())) <= 80
