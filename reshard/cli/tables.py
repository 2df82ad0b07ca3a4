"""Tables: one style for all, cells that are never markup, and rows that are never too many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from reshard.cli.text import safe

T = TypeVar("T")

NARROWEST_NAME = 16
"""A column of names is never narrower, whatever else the table holds."""

MOST_ROWS = 40
"""A table that a person still reads; ``--all`` shows the rest."""


class Name:
    """A tensor's name, broken after slashes where it does not fit, with a note below it."""

    def __init__(self, name: str, note: str = "") -> None:
        self._name = safe(name)
        self._note = safe(note)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max(len(self._name), len(self._note))
        return Measurement(min(NARROWEST_NAME, widest), widest).clamp(0, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(broken(self._name, options.max_width)))
        if self._note:
            yield Text(self._note, style="dim")


def broken(name: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters, ending in a slash where that is possible.

    >>> broken("params/layers/attention/kernel", 16)
    ['params/layers/', 'attention/kernel']
    """
    lines = [""]
    for piece in re.findall(r"[^/]*/|[^/]+", name):
        if len(lines[-1]) + len(piece) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1]) > width > 0:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines


Cell = str | Text | Name


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Rows of cells; a column whose title begins with ``>`` is right-aligned.

    Cells of several lines are written with newlines. The first column takes the room that is left.
    """
    made = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    made.pad_edge = False
    for position, column in enumerate(columns):
        made.add_column(
            Text(column.lstrip(">")),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            ratio=1 if position == 0 else None,
            min_width=NARROWEST_NAME if position == 0 else None,
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(cell: Cell) -> RenderableType:
    return Text(safe(cell, keep="\n")) if isinstance(cell, str) else cell


def capped(rows: Sequence[T], show_all: bool, most: int = MOST_ROWS) -> Sequence[T]:
    """The first rows, unless all are asked for."""
    return rows if show_all else rows[:most]


def cap_note(shown: int, total: int, noun: str) -> str | None:
    """What a capped table leaves out, and how to see it."""
    if shown >= total:
        return None
    return f"… and {total - shown:,} more {noun}; --all shows each tensor"


def warning(text: str) -> Text:
    """One warning, as a line of its own."""
    return Text.assemble(("warning: ", "bold yellow"), safe(text))
