"""The output of ``delta``: the changes of each tensor, and the size of the delta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import DeltaReport, DeltaTensor
from reshard.cli.tables import Column, cap_note, capped, table, warning
from reshard.cli.text import count_text, duration_text, safe
from reshard.geometry.sizes import format_bytes

MOST_TENSORS = 20


def delta_view(report: DeltaReport, show_all: bool) -> Iterator[RenderableType]:
    """The headline, the tensors with the largest payloads, warnings and digests."""
    yield Text.assemble(
        ("made ", "bold green"),
        f"{safe(report.target)}, version {report.version} on {report.base_version}, in {duration_text(report.seconds)}: "
        f"{count_text(len(report.tensors), 'tensor')} of {report.all_tensors:,} changed, {format_bytes(report.stored_bytes)} for "
        f"{format_bytes(report.total_bytes)}",
    )
    yield from changes_view(report.tensors.values(), show_all)
    yield from map(warning, report.warnings)
    yield Text.assemble("target digest: ", (report.target_digest, "bold"), f" ({report.checksum})")
    if report.target_identity:
        yield Text.assemble("identity: ", (report.target_identity, "bold"))


def changes_view(tensors: Iterable[DeltaTensor], show_all: bool) -> Iterator[RenderableType]:
    """The changes of the tensors with the largest payloads."""
    found = sorted(tensors, key=lambda one: -one.stored_bytes)
    shown = capped(found, show_all, MOST_TENSORS)
    if shown:
        columns = (
            "tensor", Column("changed", right=True), Column("of", right=True, rank=1), Column("", right=True), Column("stored", right=True),
        )  # fmt: skip
        rows = (
            (
                one.name,
                f"{one.changed:,}",
                f"{one.elements:,}",
                f"{one.changed / max(1, one.elements):.2%}",
                format_bytes(one.stored_bytes),
            )
            for one in shown
        )
        yield table("", columns, rows, whole=show_all)
    if note := cap_note(len(shown), len(found), "tensors"):
        yield Text(note, style="dim")
