"""What ``verify`` and ``diff`` show of leaves that are not tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import LeafDiff
from reshard.cli.tables import MOST_ROWS, Cell, cap_note, capped, table
from reshard.cli.text import safe

MOST_TEXT = 24
"""Characters of a string that a table shows."""


def leaves_view(
    leaves: Sequence[LeafDiff], show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """Those that differ."""
    unlike = [x for x in leaves if x.is_difference]
    shown = capped(unlike, show_all, most)
    if shown:
        titles = ("other leaf", "in A", "in B")
        yield table("", titles, map(_row, shown), whole=show_all)
    if note := cap_note(len(shown), len(unlike), "leaves"):
        yield Text(note, style="dim")


def compared_leaves(leaves: Sequence[LeafDiff]) -> int:
    """How many were compared."""
    return sum(not x.status.startswith("no place") for x in leaves)


def others_text(count: int) -> str:
    """Such as ``3 other leaves``."""
    return f"{count:,} other {'leaf' if count == 1 else 'leaves'}"


def _row(leaf: LeafDiff) -> tuple[Cell, ...]:
    renamed = leaf.source not in (None, leaf.name)
    name = f"{leaf.name} ({leaf.source} in A)" if renamed else leaf.name
    pairs = zip(leaf.a or "", leaf.b or "", strict=False)
    alike = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    start = alike - 4 if alike > MOST_TEXT // 2 else 0
    return name, _brief(leaf.a, start), _brief(leaf.b, start)


def _brief(text: str | None, start: int) -> str:
    """The text, cut to the part where the two sides differ."""
    if text is None:
        return "–"
    found = safe(text)
    if len(found) <= MOST_TEXT:
        return found
    found = f"…{found[start:]}" if start else found
    return found if len(found) <= MOST_TEXT else f"{found[: MOST_TEXT - 1]}…"
