"""Lists as Python-Markdown reads them.

CommonMark, which people see in the repository, nests by the width of the marker and lets a list begin right below a line of
text. Python-Markdown wants four spaces for each level, and a blank line before a list.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"( *)([-*+]|\d+\.) +(?=\S)")
_FENCE = re.compile(r" *(```+|~~~+)")


def four_spaces(page: str) -> str:
    """The page with what belongs to a list moved to multiples of four spaces."""
    made: list[str] = []
    inside: list[int] = []  # where the text of each open list begins
    fence = ""
    for line in page.splitlines():
        text = line.lstrip()
        indent = len(line) - len(text)
        if not text:
            made.append("")
            continue
        goes_on = bool(made and made[-1]) and not _ITEM.match(line)
        if not fence and not (goes_on and inside and not _FENCE.match(line)):
            inside = [begins for begins in inside if begins <= indent]
        item = _ITEM.match(line) if not fence else None
        if (
            item
            and not inside
            and made
            and made[-1]
            and not _ITEM.match(made[-1])
            and not _in_list(made)
        ):
            made.append("")
        made.append(_moved(line, indent, inside))
        if item:
            inside.append(item.end())
        fence = _fence_after(line, fence)
    return "\n".join([*made, ""])


def _moved(line: str, indent: int, inside: list[int]) -> str:
    begins = inside[-1] if inside else 0
    return " " * (4 * len(inside) + max(indent - begins, 0)) + line.lstrip()


def _in_list(made: list[str]) -> bool:
    """Whether the lines down to here, up to the last blank one, belong to a list."""
    for line in reversed(made):
        if not line:
            return False
        if _ITEM.match(line):
            return True
    return False


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open behind a line."""
    found = _FENCE.match(line)
    if not found:
        return fence
    if not fence:
        return found[1]
    return "" if found[1].startswith(fence) else fence
