"""Nests: sequences of rows of numbers as nested loops, each of which adds the same step to every number.

::

    0 1 2 10 11 12        3 times 1, within 2 times 10
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import numpy.typing as npt

    Rows = npt.NDArray[Any]

Row = tuple[int, ...]

_MOST_TRIED = 64
"""Ends of a nest that are tried, where rows are not one nest."""


class Nest(Struct, frozen=True):
    """Rows that nested loops give.

    Attributes:
        start: the first row.
        loops: how often and by what each loop steps, the slowest first.
    """

    start: Row
    loops: tuple[tuple[int, Row], ...]


def nests(rows: Rows) -> list[Nest]:
    """As few nests as there are, in whose order the rows are; ``rows`` has two axes."""
    return list(_nests(rows))


def _nests(rows: Rows) -> Iterator[Nest]:
    while len(rows):
        loops, count = _longest(rows)
        yield Nest(tuple(map(int, rows[0])), loops)
        rows = rows[count:]


def _longest(rows: Rows) -> tuple[tuple[tuple[int, Row], ...], int]:
    """The loops of the longest beginning that is one nest, and how many rows it has."""
    import numpy as np

    loops = _as_one(rows)
    if loops is not None:
        return loops, len(rows)
    steps = np.diff(rows, axis=0)
    changes = np.flatnonzero((np.diff(steps, axis=0) != 0).any(axis=1)) + 2
    # A nest ends where the step changes, with the row before it or the one behind.
    ends = sorted({int(e) for c in changes for e in (c - 1, c)} - {0}, reverse=True)
    if len(ends) > _MOST_TRIED:
        ends = [*ends[:: -(-len(ends) // _MOST_TRIED)], *ends[-8:]]
    for end in ends:
        loops = _as_one(rows[:end])
        if loops is not None:
            return loops, end
    return (), 1


def _as_one(rows: Rows) -> tuple[tuple[int, Row], ...] | None:
    """The loops that give all of the rows; None where one nest does not."""
    import numpy as np

    count = len(rows)
    if count == 1:
        return ()
    steps = np.diff(rows, axis=0)
    step = steps[0]
    is_same = (steps == step).all(axis=1)
    run = count if is_same.all() else int(np.argmin(is_same)) + 1
    for length in range(run, 1, -1):
        if count % length:
            continue
        blocks = rows.reshape(count // length, length, rows.shape[1])
        if (np.diff(blocks, axis=1) == step).all():
            outer = _as_one(blocks[:, 0])
            if outer is not None:
                return (*outer, (length, tuple(map(int, step))))
    return None
