"""The output of ``identify`` and ``sign``: the root, the tops of the tensors, and the files that were written."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import Identification
from reshard.cli.tables import cap_note, capped, table, warning
from reshard.cli.text import count_text, duration_text, rate_text, safe
from reshard.geometry.sizes import format_bytes

MOST_TENSORS = 8


def identity_view(found: Identification, show_all: bool) -> Iterator[RenderableType]:
    """The headline, the tops, the files, and the root last, where people look for it."""
    yield Text.assemble(
        ("signed " if found.signer else "identified ", "bold green"),
        f"{count_text(len(found.tensors), 'tensor')}, {format_bytes(found.nbytes)}, of {safe(found.uri)} in "
        f"{duration_text(found.seconds)} ({rate_text(found.nbytes, found.seconds)})",
    )
    shown = capped(list(found.tensors.values()), show_all, MOST_TENSORS)
    if shown:
        rows = ((t.name, t.top if show_all else f"{t.top[:32]}…") for t in shown)
        yield table("", ("tensor", "top of its tree"), rows, whole=show_all)
    if note := cap_note(len(shown), len(found.tensors), "tensors"):
        yield Text(note, style="dim")
    yield from (Text(f"written: {safe(path)}") for path in found.written)
    yield from map(warning, found.warnings)
    if found.signer:
        yield Text(f"signer: {found.signer}")
    yield Text.assemble("root: ", (found.root, "bold"))
