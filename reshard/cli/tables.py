"""Tables: one line per row, never wider than the screen; cells are never markup.

If a table is too wide, columns of a rank above 0 are left out, the highest first. Then names, and after them other
texts, are shortened in the middle. With ``whole`` every cell is printed in full, however long the lines are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from reshard.cli.text import safe

T = TypeVar("T")

NARROWEST_NAME = 12
"""A column of names is not narrower than this while other columns have room."""

COMFORTABLE_NAME = 19
"""Optional columns are left out before names get less than this."""

COMFORTABLE_TEXT = 14
NARROWEST_TEXT = 6
GAP = 2
MOST_ROWS = 40
"""Most rows of a table; ``--all`` shows the rest."""

Cell = str | Text


class Column(Struct, frozen=True):
    """A column of a table.

    Attributes:
        right: whether its cells are aligned to the right.
        rank: 0 for a column that is always shown; others are left out, the highest rank first.
    """

    title: str
    right: bool = False
    rank: int = 0


def table(
    title: str,
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    *,
    whole: bool = False,
) -> TableLines:
    """Rows of cells; a column whose title begins with ``>`` is right-aligned. The first column has names."""
    return TableLines(
        title,
        [_column(column) for column in columns],
        [[_cell(cell) for cell in row] for row in rows],
        whole,
    )


def _column(column: str | Column) -> Column:
    if isinstance(column, Column):
        return column
    return Column(column.lstrip(">"), right=column.startswith(">"))


def _cell(cell: Cell) -> Text:
    return Text(safe(cell)) if isinstance(cell, str) else cell


class TableLines:
    """A table as lines of text."""

    def __init__(
        self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Text]], whole: bool
    ) -> None:
        self._title, self._columns, self._rows, self._whole = title, columns, rows, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = [self._natural(number) for number in range(len(self._columns))]
        room = sum(natural) + GAP * len(natural) if self._whole else options.max_width
        shown = chosen(natural, [column.rank for column in self._columns], room)
        widths = fit([natural[number] for number in shown], room - GAP * (len(shown) - 1))
        columns = [self._columns[number] for number in shown]
        yield Text("")
        if self._title:
            yield _line([Text(safe(self._title), style="bold")])
        mark = "~" if options.ascii_only else "…"
        yield _line(_padded([Text(c.title) for c in columns], widths, columns, mark))
        rule = "-" if options.ascii_only else "─"
        yield Text(rule * (sum(widths) + GAP * (len(widths) - 1)), no_wrap=True, overflow="ignore")
        for row in self._rows:
            yield _line(_padded([row[number] for number in shown], widths, columns, mark))
        yield Text("")
        if len(shown) < len(self._columns):
            left = [c.title for number, c in enumerate(self._columns) if number not in shown]
            yield Text(f"too narrow for: {', '.join(left)}; --all shows them", style="dim")

    def _natural(self, number: int) -> int:
        cells = (row[number].plain for row in self._rows)
        return max(map(cell_len, (self._columns[number].title, *cells)))


def chosen(natural: Sequence[int], ranks: Sequence[int], room: int) -> list[int]:
    """Which columns are shown in ``room``: those of rank 0, and the others that fit beside them.

    >>> chosen([30, 10, 10], [0, 1, 2], 45), chosen([30, 10, 10], [0, 1, 2], 31)
    ([0, 1, 2], [0, 1])
    """
    shown = list(range(len(natural)))
    while any(ranks[number] for number in shown):
        least = min(natural[0], COMFORTABLE_NAME) + sum(natural[number] for number in shown[1:])
        if least + GAP * (len(shown) - 1) <= room:
            break
        # Among equal ranks the last column is left out first.
        shown.remove(max(shown, key=lambda number: (ranks[number], number)))
    return shown


def fit(natural: Sequence[int], room: int) -> list[int]:
    """Widths that fill at most ``room``. The names' column shrinks first, then the widest of the others, in turns.

    >>> fit([40, 12], 42), fit([40, 30], 42)
    ([30, 12], [19, 23])
    """
    widths = list(natural)
    for name, text in (
        (COMFORTABLE_NAME, max(natural)), (COMFORTABLE_NAME, COMFORTABLE_TEXT),
        (NARROWEST_NAME, COMFORTABLE_TEXT), (NARROWEST_NAME, NARROWEST_TEXT), (1, 1),
    ):  # fmt: skip
        floors = [
            min(floor, most)
            for floor, most in zip((name, *[text] * len(natural)), natural, strict=False)
        ]
        while sum(widths) > room:
            slack = [width - floor for width, floor in zip(widths, floors, strict=True)]
            if max(slack) <= 0:
                break
            widths[slack.index(max(slack))] -= 1
    return widths


def shortened(text: str, width: int, mark: str = "…") -> str:
    """The text; if it is wider than ``width`` columns of a terminal, ``mark`` replaces its middle.

    >>> shortened("params/layers/0/kernel", 13)
    'params…kernel'
    """
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    tail = (width - 1) // 2
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    start = chop_cells(text, width - 1 - tail)[0] if width > 1 else ""
    return f"{start}{mark}{end}"


def _padded(
    cells: Sequence[Text], widths: Sequence[int], columns: Sequence[Column], mark: str
) -> list[Text]:
    padded = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        text = shortened(cell.plain, width, mark)
        room = " " * (width - cell_len(text))
        padded.append(Text(room + text if column.right else text + room, style=cell.style))
    return padded


def _line(cells: Sequence[Text]) -> Text:
    line = Text(" " * GAP).join(cells)
    line.rstrip()
    line.no_wrap, line.overflow = True, "ignore"
    return line


def capped(rows: Sequence[T], show_all: bool, most: int = MOST_ROWS) -> Sequence[T]:
    """The first rows, unless all are asked for."""
    return rows if show_all else rows[:most]


def cap_note(shown: int, total: int, noun: str) -> str | None:
    """A note about the rows that a capped table leaves out, and how to see them."""
    if shown >= total:
        return None
    return f"… and {total - shown:,} more {noun}; --all shows each tensor"


def warnings_of(texts: Iterable[str], said: set[str] | None = None) -> Iterator[Text]:
    """Each warning once; ``said`` has the warnings of the command's earlier answers, and gets the new ones."""
    told = set() if said is None else said
    for text in texts:
        if text not in told:
            told.add(text)
            yield warning(text)


def warning(text: str) -> Text:
    """One warning, as a line of its own."""
    return Text.assemble(("warning: ", "bold yellow"), safe(text))
