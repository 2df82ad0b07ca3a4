"""What ``convert --part`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import PartReport
from reshard.cli.text import count_text, duration_text, rate_text, safe
from reshard.geometry.sizes import format_bytes


def part_view(report: PartReport) -> Iterator[RenderableType]:
    """What the part did, and what comes next."""
    if report.already_done:
        yield Text.assemble(
            ("already done: ", "bold green"),
            f"{safe(report.target)} is the finished result of this conversion; nothing was touched",
        )
        return
    moved = report.moved_bytes - report.resumed_bytes
    resumed = (
        f", {format_bytes(report.resumed_bytes)} of them before" if report.resumed_bytes else ""
    )
    yield Text.assemble(
        ("done: ", "bold green"),
        f"part {report.part} of {safe(report.source)} → {safe(report.target)}: {count_text(report.tasks, 'task')}, "
        f"{format_bytes(report.moved_bytes)}{resumed}, in {duration_text(report.seconds)} ({rate_text(moved, report.seconds)})",
    )
    yield Text(f"when all parts are done: reshard commit {safe(report.target)}")
