"""Collects every mismatch between a checkpoint and ``like``, and raises one error."""

from __future__ import annotations

from typing import Literal

from reshard.errors import TreeError

Section = Literal["missing", "unexpected", "unplaced", "idle", "kind", "shape", "dtype"]

SHOWN = 20
"""Lines per section; the rest is counted."""

SHOWN_WITH_HINT = 3
"""The same, where a hint says what all of them have in common."""

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
    "missing": "rename= gives what is stored other names, missing='keep' leaves these as they are in like",
    "unexpected": "unexpected='ignore' leaves them out, and so does drop=",
    "unplaced": "None leaves one on jax's default device",
}


class Mismatches:
    """Gathers what does not fit; ``refuse`` raises one TreeError for all of it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._hints: list[str] = []
        self._found: dict[Section, list[str]] = {section: [] for section in _TITLES}

    def add(self, section: Section, line: str) -> None:
        self._found[section].append(line)

    def hint(self, text: str) -> None:
        """What most of it comes from, if anything; it is said first, and the lists are short then."""
        self._hints += [text] if text else []

    def refuse(self) -> None:
        """Raises TreeError where there is anything."""
        sections = [self._section(s) for s in _TITLES if self._found[s]]
        if sections:
            raise TreeError(
                f"what is asked for does not fit the checkpoint {self._where}:\n"
                + "\n".join([*(f"  {hint}" for hint in self._hints), *sections])
            )

    def _section(self, section: Section) -> str:
        found = self._found[section]
        shown = SHOWN_WITH_HINT if self._hints else SHOWN
        lines = [f"    {line}" for line in found[:shown]]
        if len(found) > shown:
            lines.append(f"    … and {len(found) - shown} more")
        remedy = f" ({_REMEDIES[section]})" if section in _REMEDIES else ""
        return "\n".join([f"  {_TITLES[section]}: {len(found)}{remedy}", *lines])
