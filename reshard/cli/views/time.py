"""What ``plan`` and ``convert`` show of the time of a conversion on one or several hosts."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from reshard import TimePlan, TimeReport
from reshard.cli.text import count_text, duration_text


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
