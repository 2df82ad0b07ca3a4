"""Collects every mismatch between a checkpoint and ``like``, and raises one error.

If all names are missing but exist under another prefix (an item, or ``params/``), a hint says how to fit them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from reshard.errors import TreeError
from reshard.layout.prefixes import prefixes_above, surplus_prefix, with_folders

Section = Literal["missing", "unexpected", "unplaced", "idle", "kind", "shape", "dtype"]

SHOWN = 20
"""Lines per section; the rest is counted."""

SHOWN_WITH_HINT = 3
"""Lines per section after a hint, which explains all of them."""

_TITLES: dict[Section, str] = {
    "missing": "asked for, but not in the checkpoint",
    "unexpected": "in the checkpoint, but not asked for",
    "unplaced": "without a sharding in the tree of layouts",
    "idle": "named by the tree of layouts, but not restored",
    "kind": "of another kind",
    "shape": "of another shape",
    "dtype": "of another dtype",
}
_REMEDIES: dict[Section, str] = {
    "missing": "rename= gives stored leaves other names, missing='keep' leaves these as they are",
    "unexpected": "unexpected='ignore' leaves them out, and so does drop=",
    "unplaced": "None leaves a tensor on jax's default device",
}


class Mismatches:
    """Mismatches by section; ``refuse`` raises one TreeError for all of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._hints: list[str] = []
        self._found: dict[Section, list[str]] = {section: [] for section in _TITLES}
        self._counts = dict.fromkeys(_TITLES, 0)

    def add(self, section: Section, line: str, count: int = 1) -> None:
        """Adds a line about ``count`` leaves."""
        self._found[section].append(line)
        self._counts[section] += count

    def hint(self, text: str) -> None:
        """Adds a likely cause of all mismatches, which comes first and shortens the lists; "" adds nothing."""
        self._hints += [text] if text else []

    def refuse(self) -> None:
        """Raises TreeError if there is any mismatch."""
        sections = [self._section(s) for s in _TITLES if self._found[s]]
        if sections:
            raise TreeError(
                f"the request does not fit the checkpoint {self._where}:\n"
                + "\n".join([*(f"  {hint}" for hint in self._hints), *sections])
            )

    def _section(self, section: Section) -> str:
        found = self._found[section]
        shown = SHOWN_WITH_HINT if self._hints else SHOWN
        lines = [f"    {line}" for line in found[:shown]]
        if len(found) > shown:
            lines.append(f"    … and {len(found) - shown} more")
        remedy = f" ({_REMEDIES[section]})" if section in _REMEDIES else ""
        return "\n".join([f"  {_TITLES[section]}: {self._counts[section]}{remedy}", *lines])


def target_hint(names: Collection[str], stored: Sequence[str], items: Collection[str]) -> str:
    """How to restore a target whose names are all missing; "" if no prefix makes them fit.

    Args:
        names: those of the target.
        items: the checkpoint's items whose names are the first key of their leaves' names.
    """
    above = prefixes_above(names, stored)
    if above:
        hows = " or ".join(_how(prefix, stored, items) for prefix in above)
        return f"{_every(names)} there below {' and below '.join(map(repr, above))}: {hows}"
    surplus = surplus_prefix(names, stored)
    if surplus is None:
        return ""
    return (
        f"{_every(names)} there without {surplus!r}: rename=[('^', {surplus!r})] puts it before the names of the "
        "checkpoint"
    )


def layout_hint(keys: Collection[str], stored: Sequence[str]) -> str:
    """How to change a tree of layouts that has no key of the checkpoint; "" if no prefix makes it fit."""
    there = with_folders(stored)
    above = prefixes_above(keys, there)
    if above:
        return f"the tree of layouts begins below {above[0]!r} of the checkpoint; put it below that key"
    surplus = surplus_prefix(keys, there)
    if surplus is None:
        return ""
    return f"the checkpoint's names begin below {surplus!r} of the tree of layouts; give the part below that key"


def _every(names: Collection[str]) -> str:
    return f"every one of the {len(names)} names is" if len(names) > 1 else "the name is"


def _how(prefix: str, stored: Sequence[str], items: Collection[str]) -> str:
    """The arguments that remove a prefix."""
    first, _, rest = prefix.partition("/")
    if first in items:
        return f"pass item={first!r}" + (f" and {_rename(rest)}" if rest else "")
    others = [name for name in stored if not name.startswith(prefix)]
    select = f"select=['^{re.escape(prefix)}'] and " if others else ""
    return f"pass {select}{_rename(prefix)}"


def _rename(prefix: str) -> str:
    return f"rename=[('^{re.escape(prefix)}', '')]"
