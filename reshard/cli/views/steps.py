"""What ``steps`` shows: a row for each step of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import StepInfo
from reshard.cli.tables import MOST_ROWS, Cell, Column, table
from reshard.cli.text import count_text, safe
from reshard.geometry.sizes import format_bytes

_STATES = {True: ("finished", "green"), False: ("not finished", "bold yellow")}


def steps_view(
    run: str, steps: Sequence[StepInfo], show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """The headline, then the steps; of many steps the last ones, which people look for."""
    finished = sum(step.is_finished for step in steps)
    size = format_bytes(sum(step.nbytes for step in steps))
    yield Text.assemble(
        (safe(run), "bold"), f": {count_text(len(steps), 'step')}, {finished:,} finished, {size}"
    )
    shown = steps if show_all else steps[-most:]
    titles = ("folder", ">step", "state", Column("files", right=True, rank=1), ">size", "written")
    yield table("", titles, map(_row, shown), whole=show_all)
    if len(shown) < len(steps):
        yield Text(
            f"… and {len(steps) - len(shown):,} earlier steps; --all shows each", style="dim"
        )


def _row(step: StepInfo) -> tuple[Cell, ...]:
    written = "–" if step.written_at is None else f"{step.written_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        step.name,
        f"{step.step}",
        Text(*_STATES[step.is_finished]),
        f"{step.files:,}",
        format_bytes(step.nbytes),
        written,
    )
