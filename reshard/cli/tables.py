"""Tables: one style for all, cells that are never markup, and rows that are never too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from reshard.cli.text import safe

T = TypeVar("T")

MOST_ROWS = 40
"""A table that a person still reads; ``--all`` shows the rest."""

Cell = str | Text


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
            min_width=16 if position == 0 else None,
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(safe(cell, keep="\n"))


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
