"""What ``fingerprint`` shows: what was recorded, and where."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import Fingerprint
from reshard.cli.tables import cap_note, capped, table, warning
from reshard.cli.text import count_text, duration_text, rate_text, safe
from reshard.geometry.sizes import format_bytes

MOST_DIGESTS = 8


def fingerprint_view(found: Fingerprint, show_all: bool) -> Iterator[RenderableType]:
    """The headline, digests, and the files that contain them."""
    yield Text.assemble(
        ("recorded ", "bold green"),
        f"{count_text(len(found.tensors), 'tensor')}, {format_bytes(found.nbytes)}, and "
        f"{count_text(found.files, 'other file')} of {safe(found.uri)} in "
        f"{duration_text(found.seconds)} ({rate_text(found.nbytes, found.seconds)})",
    )
    shown = capped(list(found.tensors.items()), show_all, MOST_DIGESTS)
    if shown:
        yield table("", ("tensor", "CRC-64/NVME"), shown, whole=show_all)
    if note := cap_note(len(shown), len(found.tensors), "tensors"):
        yield Text(note, style="dim")
    yield from (Text(f"written: {safe(path)}") for path in found.written)
    yield from map(warning, found.warnings)
