"""The output of ``jobs``: a table of conversions, one conversion, and the result of a change to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from reshard import ConversionReport, DeltaReport
from reshard.cli.tables import ARROW, Cell, Column, table
from reshard.cli.text import and_text, count_text, safe
from reshard.cli.views.inspection import delta_view
from reshard.cli.views.report import report_view, together_view
from reshard.geometry.sizes import format_bytes

if TYPE_CHECKING:
    from reshard_server.schemas.conversion import Conversion, PartState

_STYLES = {"succeeded": "green", "failed": "bold red", "cancelled": "bold yellow"}

_DONE = {
    "cancelled": "cancelled; the target does not change, and reshard jobs retry resumes it",
    "cancelling": "stops within seconds; the target does not change, and reshard jobs retry resumes it",
    "queued": "is queued again, and resumes where it stopped",
}
"""The meaning of each state after a change."""


def jobs_view(found: Sequence[Conversion], has_more: bool) -> Iterator[RenderableType]:
    """A row for each conversion."""
    if not found:
        yield Text("no conversion was found")
        return
    titles = (
        "source → target", "conversion", "state", Column("moved", right=True, rank=1), Column("created", rank=2),
    )  # fmt: skip
    yield table("", titles, map(_row, found))
    if has_more:
        yield Text("… and older conversions; --all lists each", style="dim")


def _row(one: Conversion) -> tuple[Cell, ...]:
    state = Text(one.state, style=_STYLES.get(one.state, ""))
    first, *others = _targets(one)
    more = f" and {len(others):,} more" if others else ""
    paths = f"{one.request.source}{ARROW}{first}{more}{' (delta)' if _base(one) else ''}"
    return paths, one.id, state, _share(one), _time(one.created_at)


def _base(one: Conversion) -> str | None:
    """The base version of a delta; None for a conversion."""
    return getattr(one.request, "old", None)


def _targets(one: Conversion) -> list[str]:
    asked: Any = one.request  # to one target, or to several
    goals = asked.targets if hasattr(asked, "targets") else (asked,)
    return [goal.target for goal in goals]


def _share(one: Conversion) -> str:
    """The share of the data that is moved; a dash before it is known."""
    if one.state == "succeeded":
        return "100%"
    now = one.progress
    return f"{100 * now.moved_bytes // now.total_bytes}%" if now and now.total_bytes else "–"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def job_view(
    one: Conversion, reports: Sequence[ConversionReport | DeltaReport], show_all: bool
) -> Iterator[RenderableType]:
    """The headline, the times, the error of a conversion that failed, and the reports of one that succeeded."""
    style = _STYLES.get(one.state, "bold")
    yield Text.assemble("conversion ", (one.id, "bold"), ": ", (one.state, style))
    for target in _targets(one):
        yield Text(safe(f"{one.request.source}{ARROW}{target}"))
    if (base := _base(one)) is not None:
        yield Text(safe(f"delta from {base}"))
    yield Text("; ".join(_times(one)))
    if one.progress is not None and not one.done:
        now = one.progress
        total = f"{format_bytes(now.moved_bytes)} of {format_bytes(now.total_bytes)}"
        yield Text(f"{now.stage}: {total}, {_share(one)}")
    if one.waiting_for is not None:
        yield Text(safe(f"waits for {one.waiting_for}"))
    yield from _parts(one, show_all)
    if one.error is not None:
        yield Text.assemble(("failed: ", "bold red"), safe(str(one.error.get("detail"))))
    said: set[str] = set()
    for report in reports:
        if isinstance(report, DeltaReport):
            yield from delta_view(report, show_all)
        else:
            yield from report_view(report, show_all, said)
    converted = [report for report in reports if not isinstance(report, DeltaReport)]
    if len(converted) > 1 and one.read_bytes is not None:
        yield from together_view(converted, one.read_bytes)


MOST_PARTS = 40
"""Parts that are shown, a screen of them: those that run, wait or failed come first. ``--all`` shows each."""


def _parts(one: Conversion, show_all: bool) -> Iterator[RenderableType]:
    """A row for each part, and the number of parts in each state."""
    if one.part_counts is None:
        return
    counts = ", ".join(f"{many:,} {state}" for state, many in sorted(one.part_counts.items()))
    yield Text(f"parts: {counts or 'none; the target was finished before'}")
    parts = one.parts or []
    shown = parts if show_all else sorted(parts, key=_is_done)[:MOST_PARTS]
    titles = (
        Column("part", right=True), "state", Column("moved", right=True, rank=1), Column("attempts", right=True, rank=3),
        Column("seconds", right=True, rank=4), Column("host", rank=2),
    )  # fmt: skip
    if shown:
        yield table("", titles, map(_part_row, shown))
    if len(shown) < len(parts):
        yield Text(f"… and {len(parts) - len(shown):,} more parts; --all lists each", style="dim")


def _is_done(part: PartState) -> bool:
    return part.state == "succeeded"


def _part_row(part: PartState) -> tuple[Cell, ...]:
    at = part.progress
    moved = (
        "–" if at is None or not at.total_bytes else f"{100 * at.moved_bytes // at.total_bytes}%"
    )
    end = part.ended_at or datetime.now(UTC)
    seconds = "–" if part.started_at is None else f"{(end - part.started_at).total_seconds():.0f}"
    state = Text(part.state, style=_STYLES.get(part.state, ""))
    return str(part.number), state, moved, str(part.attempts), seconds, part.host or "–"


def _times(one: Conversion) -> Iterator[str]:
    by = f" by the schedule {safe(one.schedule)}" if one.schedule else ""
    yield f"created {_time(one.created_at)} by the token {safe(one.created_by)}{by}"
    if one.started_at is not None:
        yield f"started {_time(one.started_at)}"
    if one.ended_at is not None:
        yield f"ended {_time(one.ended_at)}"
    yield count_text(one.attempts, "attempt")


def changed_view(one: Conversion) -> Iterator[Text]:
    """The new state of a conversion that was cancelled or queued again."""
    where = and_text([safe(target) for target in _targets(one)])
    meaning = _DONE.get(one.state, one.state)
    yield Text(f"conversion {one.id} of {safe(one.request.source)} to {where}: {meaning}")
