"""What ``plan`` and ``convert`` show of requests to buckets."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import RequestPlan, RequestReport, Requests
from reshard.cli.tables import table
from reshard.cli.text import duration_text
from reshard.geometry.sizes import format_bytes


def planned_requests(
    plan: RequestPlan | None,
    latency_s: float = RequestPlan.LATENCY_S,
    bytes_per_s: float = RequestPlan.BYTES_PER_S,
) -> Iterator[Text]:
    """The requests by kind, the bytes, and the time that they take on a link."""
    if plan is None:
        return
    found = plan.requests(latency_s, bytes_per_s)
    kinds = ", ".join(f"{found.by_kind[kind]:,} {kind}" for kind in _made(found))
    time = duration_text(plan.seconds(latency_s, bytes_per_s))
    yield Text(
        f"requests: {found.total:,} to buckets ({kinds}); {format_bytes(found.received_bytes)} in, "
        f"{format_bytes(found.sent_bytes)} out; about {time} at {1000 * latency_s:,.4g} ms and "
        f"{bytes_per_s / 1e6:,.4g} MB/s"
    )


def request_report(report: RequestReport | None) -> Iterator[RenderableType]:
    """A table of what was planned and what was made."""
    if report is None:
        return
    kinds = _made(report.planned, report.actual)
    rows = [
        (
            title,
            *(f"{found.by_kind[kind]:,}" for kind in kinds),
            f"{found.total:,}",
            *_sizes(found),
        )
        for title, found in (("planned", report.planned), ("made", report.actual))
    ]
    yield table("", ("requests", *(f">{kind}" for kind in kinds), ">total", ">in", ">out"), rows)


def _made(*found: Requests) -> list[str]:
    return [kind for kind in found[0].by_kind if any(one.by_kind[kind] for one in found)]


def _sizes(found: Requests) -> tuple[str, str]:
    return format_bytes(found.received_bytes), format_bytes(found.sent_bytes)
