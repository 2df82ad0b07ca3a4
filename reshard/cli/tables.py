"""Tables: one style for all, cells that are never markup, and rows that are never too many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from reshard.cli.text import safe

T = TypeVar("T")

NARROWEST_NAME = 16
"""A column of names is no narrower while other columns have words to break between."""

COMFORTABLE_NAME = 24
"""Names keep this much while other columns can do with less."""

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


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Fitted:
    """Rows of cells; a column whose title begins with ``>`` is right-aligned.

    Cells of several lines are written with newlines. The first column takes the room that is left.
    """
    made = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        made.add_column(Text(column.lstrip(">")), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return Fitted(made)


class Fitted:
    """A table never wider than the console: cells are broken where they must be, never cut off."""

    def __init__(self, made: Table) -> None:
        self._made = made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._made.columns
        sizes = [_size(column, console, options) for column in columns]
        # A space before the first column, one after the last, two between the others.
        room = options.max_width - 2 * len(columns)
        for column, width in zip(columns, fit(sizes, room), strict=True):
            column.width = width
        yield self._made


def _size(column: Column, console: Console, options: ConsoleOptions) -> Measurement:
    found = [Measurement.get(console, options, cell) for cell in column.cells]
    title = Measurement.get(console, options, column.header).maximum
    most = max(title, *(m.maximum for m in found))
    # Titles stay whole, and a number and its unit on one line, beside the others of their cell.
    least = most if column.justify == "right" else max(title, *(m.minimum for m in found))
    return Measurement(least, most)


def fit(sizes: Sequence[Measurement], room: int) -> list[int]:
    """Widths of columns that fill at most ``room``, the first of them names.

    Names give way first, then the others down to their longest word, then names again, and only
    then words are broken.

    >>> fit([Measurement(16, 40), Measurement(4, 12)], 42)
    [30, 12]
    """
    most, least = [m.maximum for m in sizes], [m.minimum for m in sizes]
    name = min(most[0], COMFORTABLE_NAME)
    widths = list(most)
    for floors in ([name, *most[1:]], [name, *least[1:]], least, [1] * len(sizes)):
        while sum(widths) > room:
            slack = [width - floor for width, floor in zip(widths, floors, strict=True)]
            if max(slack) <= 0:
                break
            widths[slack.index(max(slack))] -= 1
    return widths


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
