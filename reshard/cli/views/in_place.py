"""What ``apply --in-place`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import InPlaceReport
from reshard.cli.tables import warning
from reshard.cli.text import count_text, duration_text, safe
from reshard.geometry.sizes import format_bytes


def in_place_view(report: InPlaceReport) -> Iterator[RenderableType]:
    """A sentence, and what was removed."""
    if report.already_done:
        yield Text.assemble(
            ("already done: ", "bold green"),
            f"{safe(report.base)} is version {report.version}, {count_text(report.all_tensors, 'tensor')} as recorded",
        )
        return
    before = f" and was {report.base_version}" if report.base_version else ""
    again = ", begun by a call that was interrupted" if report.resumed else ""
    yield Text.assemble(
        ("changed: ", "bold green"),
        f"{safe(report.base)} is version {report.version}{before}, in {duration_text(report.seconds)}{again}: "
        f"{count_text(report.changed_tensors, 'tensor')} of {report.all_tensors:,} changed, {format_bytes(report.changed_bytes)} differ, "
        f"{format_bytes(report.written_bytes)} written, {format_bytes(report.journal_bytes)} of journal",
    )
    if report.removed:
        yield Text(f"removed, since they were of the version before: {', '.join(report.removed)}")
    yield from map(warning, report.warnings)
