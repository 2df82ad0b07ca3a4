"""A strip of the parts of a conversion: a row for each host, and a cell for each part, or for parts in the same state.

::

    worker-1   [✓] [✓] [42]          each cell has a sign of its state, or the share done
    worker-2   [57 ✓] [17] [!]       of many parts those that ended well, or wait, are one cell
    waiting    [430 …]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reshard_server.pages.rendering import percent_of
from reshard_server.schemas.conversion import (
    PartState,
    State,
)

MOST_CELLS = 100
"""More parts than that are drawn as counts, except for those that run or failed; five rows of a wide window."""

MOST_HOSTS = 40
"""Limit of the rows of hosts; the other hosts share one row."""

SIGNS: dict[State, str] = {
    "failed": "!", "running": "%", "cancelling": "■", "succeeded": "✓", "queued": "…", "cancelled": "×",
}  # fmt: skip
"""The sign of each state, in the order of the cells; a part that runs has its percent."""

SINGLE: tuple[State, ...] = ("failed", "running", "cancelling")
"""States in which each part has a cell of its own."""

CELL_WIDTH, LETTER_WIDTH = 34, 8


class Cell(NamedTuple):
    """A part, or several in the same state.

    Attributes:
        name: ``part 7``, or ``57 parts``.
        part: the only part; None for several.
        label: the text in the cell.
        percent: done.
    """

    name: str
    state: State
    part: PartState | None
    label: str
    percent: int
    width: int


class Row(NamedTuple):
    """The cells of a host; ``name`` is that of the row."""

    name: str
    cells: tuple[Cell, ...]


WAITING = "not on a host"


def rows_of(parts: Sequence[PartState]) -> list[Row]:
    """The rows, hosts by name, and last the parts that no host has."""
    by_host: dict[str, list[PartState]] = {}
    for part in parts:
        waits = part.host is None or part.state == "queued"  # with the host that ran it before
        by_host.setdefault("" if waits else part.host or "", []).append(part)
    waiting = by_host.pop("", [])
    named = sorted(by_host.items())
    if len(named) > MOST_HOSTS:
        rest = [part for _, its in named[MOST_HOSTS:] for part in its]
        named = [*named[:MOST_HOSTS], (f"{len(named) - MOST_HOSTS} more hosts", rest)]
    if waiting:
        named.append((WAITING, waiting))
    is_small = len(parts) <= MOST_CELLS
    singles = MOST_CELLS
    rows = []
    for name, its in named:
        cells = list(_cells(its, is_small=is_small, singles=singles))
        singles -= 0 if is_small else sum(cell.part is not None for cell in cells)
        rows.append(Row(name, tuple(cells)))
    return rows


def _cells(parts: Sequence[PartState], *, is_small: bool, singles: int) -> Iterable[Cell]:
    if is_small:
        yield from map(_single, parts)
        return
    for state in SIGNS:
        found = [part for part in parts if part.state == state]
        own = max(0, singles) if state in SINGLE else 0
        yield from map(_single, found[:own])
        singles -= len(found[:own])
        if rest := found[own:]:
            label = f"{len(rest)} {SIGNS[state]}"
            width = max(CELL_WIDTH, LETTER_WIDTH * (len(label) + 2))
            name = f"{len(rest)} part{'s' if len(rest) > 1 else ''}"
            yield Cell(name, state, None, label, 100 * (state == "succeeded"), width)


def _single(part: PartState) -> Cell:
    at = part.progress
    percent = percent_of(at.moved_bytes, at.total_bytes) if at else 0
    percent = 100 if part.state == "succeeded" else percent
    label = str(percent) if part.state == "running" else SIGNS[part.state]
    return Cell(f"part {part.number}", part.state, part, label, percent, CELL_WIDTH)
