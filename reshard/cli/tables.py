"""Tables: names are never cut, and cells are never markup.

Where the output has a width, a table stays within it: columns of a rank above 0 are left out, the highest first, as long
as names do not fit beside the others. A name that still does not fit has a line of its own, and the other cells of its
row stand below it. Other texts are broken into several lines. Output without a width (a pipe, a file) has one line for
each row and every column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from msgspec import Struct
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from reshard.cli.console import MOST_ROWS as MOST_ROWS
from reshard.cli.console import UNLIMITED
from reshard.cli.text import safe

T = TypeVar("T")

NARROWEST_TEXT = 6
"""Other columns give way to the widest one down to this width."""

GAP = 2
ARROW = " → "

Cell = str | Text


class Column(Struct, frozen=True):
    """A column of a table.

    Attributes:
        right: true if its cells are aligned to the right.
        rank: 0 for a column that is always shown; others are left out, the highest rank first.
    """

    title: str
    right: bool = False
    rank: int = 0


def names_text(source: str | None, target: str) -> str:
    """The name, or both names if it changes.

    >>> names_text("params/w", "model/w"), names_text(None, "model/w")
    ('params/w → model/w', 'model/w')
    """
    return target if source in (None, target) else f"{source}{ARROW}{target}"


def sources_text(sources: Sequence[str] | None, source: str | None, target: str) -> str:
    """The names as in ``names_text``; for a tensor that a map makes of several others, the first and the number of the others.

    >>> sources_text(("q", "k", "v"), "q", "qkv"), sources_text(("q",), "q", "w")
    ('q +2 → qkv', 'q → w')
    """
    if sources is None or len(sources) == 1:
        return names_text(source, target)
    first = f"{sources[0]} +{len(sources) - 1:,}" if sources else "a constant"
    return f"{first}{ARROW}{target}"


def table(
    title: str,
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    *,
    whole: bool = False,
) -> TableLines:
    """Rows of cells; a column whose title begins with ``>`` is right-aligned. The first column has names.

    ``whole``: one line for each row and every column, on a screen of any width.
    """
    made = [
        c if isinstance(c, Column) else Column(c.lstrip(">"), right=c.startswith(">"))
        for c in columns
    ]
    return TableLines(title, made, list(rows), whole)


class TableLines:
    """A table as lines of text."""

    def __init__(
        self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], whole: bool
    ) -> None:
        self._title, self._columns, self._rows, self._whole = title, columns, rows, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = UNLIMITED if self._whole else options.max_width
        texts = [list(map(_plain, row)) for row in self._rows]
        form = _form(self._columns, texts, room)
        yield from self._head(form, console, "-" if options.ascii_only else "─")
        for row, cells in zip(self._rows, texts, strict=True):
            styles = [console.get_style(c.style) if isinstance(c, Text) else None for c in row]
            shown = [styles[number] for number in form.shown] if any(styles) else ()
            for line in form.lines(cells):
                yield from _segments(line, shown)
        yield Segment.line()
        left = [c.title for n, c in enumerate(self._columns) if n not in form.shown]
        if left:
            note = f"too narrow for: {', '.join(left)}; --all shows them"
            yield from (Text(line, style="dim") for line in broken(note, room))

    def _head(self, form: _Form, console: Console, rule: str) -> Iterator[Segment]:
        yield Segment.line()
        if self._title:
            yield Segment(safe(self._title), console.get_style("bold"))
            yield Segment.line()
        for line in form.lines([column.title for column in self._columns]):
            yield from _segments(line, ())
        yield Segment(rule * form.width)
        yield Segment.line()


def _plain(cell: Cell) -> str:
    return safe(cell) if isinstance(cell, str) else cell.plain


def _segments(cells: Sequence[str], styles: Sequence[Style | None]) -> Iterator[Segment]:
    """One line. Segments print ten times as fast as Text, and ``--all`` may have 100,000 rows."""
    gap = " " * GAP
    if styles and len(cells) == len(styles):
        for number, (cell, style) in enumerate(zip(cells, styles, strict=True)):
            yield Segment(gap * (number > 0))
            yield Segment(cell, style)
    else:
        yield Segment(gap.join(cells).rstrip())
    yield Segment.line()


class _Form(Struct, frozen=True):
    """The columns that are shown.

    Attributes:
        shown: their numbers.
        widths: their widths; 0 for names that have a line of their own.
        right: true for each that is aligned to the right.
        room: the most columns of the screen.
    """

    shown: list[int]
    widths: list[int]
    right: list[bool]
    room: int

    @property
    def width(self) -> int:
        """Columns of the whole table without names that have a line of their own."""
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    def lines(self, row: Sequence[str]) -> Iterator[list[str]]:
        """The lines of a row: the cells of each, or a name alone."""
        name, *others = (row[number] for number in self.shown)
        if cell_len(name) > self.widths[0]:
            yield from ([line] for line in _name_lines(name, self.room))
            name = ""
        if not others:
            if name:
                yield [name]
            return
        columns = [[name], *map(broken, others, self.widths[1:])]
        for cells in zip_longest(*columns, fillvalue=""):
            yield list(map(_padded, cells, self.widths, self.right))


def _form(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> _Form:
    natural = [
        max(map(cell_len, (column.title, *(row[number] for row in rows))))
        for number, column in enumerate(columns)
    ]
    fixed = [n for n, column in enumerate(columns) if not column.rank]
    left = room - sum(natural[n] + GAP for n in fixed[1:])
    if left < 0:
        # The others are broken in any case, so that short names may stay beside them.
        left = room // 3
    first = _names_beside(columns[0].title, rows, left) if fixed[1:] else natural[0]
    shown = chosen([first, *natural[1:]], [column.rank for column in columns], room)
    others = fit([natural[n] for n in shown[1:]], room - first - GAP * (len(shown) - 1))
    return _Form(shown, [first, *others], [columns[n].right for n in shown], room)


def _names_beside(title: str, rows: Sequence[Sequence[str]], room: int) -> int:
    """The width of the names beside other columns; 0 if each has a line of its own."""
    width = name_width([cell_len(row[0]) for row in rows], room)
    return max(width, min(cell_len(title), room)) if width else 0


def name_width(names: Sequence[int], room: int) -> int:
    """The width of the widest name that fits; 0 if most do not fit, and each has a line of its own.

    >>> name_width([9, 12, 40], 20), name_width([9, 30, 40], 20)
    (12, 0)
    """
    fitting = [width for width in names if width <= room]
    return max(fitting, default=0) if 2 * len(fitting) >= len(names) else 0


def chosen(widths: Sequence[int], ranks: Sequence[int], room: int) -> list[int]:
    """The columns that are shown in ``room``: those of rank 0, and the others that fit beside them.

    >>> chosen([20, 10, 10], [0, 1, 2], 45), chosen([20, 10, 10], [0, 1, 2], 33)
    ([0, 1, 2], [0, 1])
    """
    shown = list(range(len(widths)))
    while any(ranks[number] for number in shown):
        if sum(widths[number] for number in shown) + GAP * (len(shown) - 1) <= room:
            break
        # Among equal ranks the last column is left out first.
        shown.remove(max(shown, key=lambda number: (ranks[number], number)))
    return shown


def fit(natural: Sequence[int], room: int) -> list[int]:
    """Widths that fill at most ``room``, if each may have one column; the widest shrink first.

    >>> fit([12, 30], 42), fit([12, 30], 30)
    ([12, 30], [12, 18])
    """
    widths = list(natural)
    for floor in (NARROWEST_TEXT, 1):
        while sum(widths) > room and max(widths) > floor:
            widths[widths.index(max(widths))] -= 1
    return widths


def broken(text: str, width: int) -> list[str]:
    """The text in lines of ``width`` columns of a terminal, broken at spaces if possible.

    >>> broken("only in A (int8)", 9)
    ['only in A', '(int8)']
    """
    if cell_len(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= width:
            line = longer
            continue
        parts = chop_cells(word, width) or [""]
        lines += [line, *parts[:-1]] if line else parts[:-1]
        line = parts[-1]
    return [*lines, line]


def _name_lines(name: str, room: int) -> list[str]:
    """A name in one line, however long it is; two names in two lines if they do not fit into one."""
    first, arrow, second = name.partition(ARROW)
    return [first, f"{arrow.lstrip()}{second}"] if arrow and cell_len(name) > room else [name]


def _padded(text: str, width: int, right: bool) -> str:
    room = " " * (width - cell_len(text))
    return room + text if right else text + room


def capped(rows: Sequence[T], show_all: bool, most: int = MOST_ROWS) -> Sequence[T]:
    """The first rows, unless all are asked for."""
    return rows if show_all else rows[:most]


def first_rows(
    columns: Sequence[str | Column],
    rows: Sequence[T],
    row: Callable[[T], Sequence[Cell]],
    noun: str,
    *,
    show_all: bool,
    most: int = MOST_ROWS,
    title: str = "",
    below: Callable[[T], Iterable[Text]] = lambda _: (),
) -> Iterator[TableLines | Text]:
    """A table of the first rows, what stands below it about each of them, and a note about the other rows; nothing without rows."""
    shown = capped(rows, show_all, most)
    if shown:
        yield table(title, columns, map(row, shown), whole=show_all)
        yield from chain.from_iterable(map(below, shown))
    if note := cap_note(len(shown), len(rows), noun):
        yield Text(note, style="dim")


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
