"""What ``clean`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import Leftovers
from reshard.cli.text import count_text, safe
from reshard.geometry.sizes import format_bytes


def clean_view(found: Leftovers) -> Iterator[RenderableType]:
    """One sentence, and one about uploads that cannot be looked for."""
    uploads = f", {count_text(found.uploads, 'unfinished upload')}" if found.uploads else ""
    what = (
        f"{count_text(found.files, 'file')} ({format_bytes(found.nbytes)}) of {safe(found.target)}{uploads}, and "
        f"{safe(found.place)}"
    )
    if found.is_removed:
        yield Text.assemble(("removed: ", "bold green"), what)
    else:
        yield Text.assemble(("would remove: ", "bold"), what)
    if found.uploads is None:
        yield Text(
            "unfinished uploads in parts, if there are any, were not found: this store does not tell them; a lifecycle rule of "
            "the bucket removes them"
        )
