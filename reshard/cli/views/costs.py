"""The lines of ``plan`` and ``convert`` about time on hosts and requests to buckets."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import PlannedRequests, RequestReport, Requests, TimePlan, TimeReport
from reshard.cli.tables import table
from reshard.cli.text import count_text, duration_text
from reshard.geometry.sizes import format_bytes


def planned_time(plan: TimePlan | None) -> Iterator[Text]:
    """The time, its parts and its bottleneck; a second line says what is not counted."""
    if plan is None:
        return
    parts = ", ".join(f"{part} {duration_text(seconds)}" for part, seconds in plan.by_part.items())
    verb = "are" if plan.bottleneck == "cores" else "is"
    yield Text(
        f"time: about {duration_text(plan.seconds)} on {_hosts(plan)}: {parts}; the {plan.bottleneck} {verb} the bottleneck"
    )
    unknown = [
        *(["the network (--nic gives its speed)"] if plan.network_s is None else []),
        *(["the speed of the file system"] if plan.store_s is None else []),
    ]
    if unknown:
        yield Text(f"not counted: {', '.join(unknown)}", style="dim")


def time_report(report: TimeReport | None) -> Iterator[Text]:
    """The actual time beside the planned one, and the bottleneck that was expected."""
    if report is None:
        return
    plan = report.planned
    yield Text(
        f"time: {duration_text(report.actual_s)}; planned {duration_text(plan.seconds)} on {_hosts(plan)}, expected "
        f"bottleneck: {plan.bottleneck}"
    )


def _hosts(plan: TimePlan) -> str:
    return f"{count_text(plan.hosts, 'host')} × {count_text(plan.cores, 'core')}"


def planned_requests(found: PlannedRequests | None) -> Iterator[Text]:
    """The most requests by kind, the bytes, and the time that they take on a link."""
    if found is None:
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.by_kind.items() if count)
    yield Text(
        f"requests: at most {found.total:,} to buckets ({kinds}); {format_bytes(found.received_bytes)} in, "
        f"{format_bytes(found.sent_bytes)} out; about {duration_text(found.seconds)} at "
        f"{1000 * found.latency_s:,.4g} ms and {found.bytes_per_s / 1e6:,.4g} MB/s"
    )


def request_report(report: RequestReport | None) -> Iterator[RenderableType]:
    """A table of planned and actual requests."""
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
        for title, found in (("planned at most", report.planned), ("made", report.actual))
    ]
    yield table("", ("requests", *(f">{kind}" for kind in kinds), ">total", ">in", ">out"), rows)


def _made(*found: Requests) -> list[str]:
    return [kind for kind in found[0].by_kind if any(one.by_kind[kind] for one in found)]


def _sizes(found: Requests) -> tuple[str, str]:
    return format_bytes(found.received_bytes), format_bytes(found.sent_bytes)
