"""Links of a page, from where the page lies in the repository to where it lies in the site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


class BrokenLinkError(Exception):
    """A page leads to something that the site does not have."""


def moved(text: str, source: Path, places: Mapping[Path, Path]) -> str:
    """The text of the page ``source``, with links that hold where ``places`` puts each file.

    A link to a folder leads to its ``index.md``. Raises BrokenLinkError for a link to what has no place.
    """
    here = places[source].parent

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link[2]))
        place = places.get(target) or places.get(target / "index.md")
        if place is None:
            raise BrokenLinkError(
                f"{source}: {link[2]} is not part of the site; correct the link, or add the file to OUTSIDE in "
                "docs/site/stage.py"
            )
        return f"{link[1]}{os.path.relpath(place, here)}{link[3]}"

    return outside_code(text, lambda prose: _LINK.sub(replaced, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with ``change`` done to everything between its fenced blocks."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])
