"""What ``clean`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import Leftovers
from reshard.cli.text import count_text, safe
from reshard.geometry.sizes import format_bytes


def clean_view(found: Leftovers) -> Iterator[RenderableType]:
    """One sentence."""
    what = f"{count_text(found.files, 'file')} ({format_bytes(found.nbytes)}) of {safe(found.target)}, and {safe(found.place)}"
    if found.is_removed:
        yield Text.assemble(("removed: ", "bold green"), what)
    else:
        yield Text.assemble(("would remove: ", "bold"), what)
