"""Wording: what the library says, in the client's words: roots and paths below them, not this machine's paths."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from reshard_server.schemas.conversion import ConversionRequest, goals

HIDDEN = "(a folder of the server)"
"""What is told instead of a folder that has no name for the client."""

_PLAIN = re.compile("[A-Za-z0-9/_.-]")
"""Characters that are written in one way only."""

_UNTOLD = frozenset({"type", "title", "field", "instance", "error"})
"""Members of a problem that no library wrote."""


@dataclass(frozen=True)
class RootNames:
    """Real folders and the names that a client knows them by, the longest first.

    Attributes:
        hidden: folders that have no name for the client; whatever lies in one is told as ``HIDDEN``.
    """

    names: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, roots: Mapping[str, Path], *others: Path) -> RootNames:
        """Every root by its name.

        Args:
            others: folders of the server that no client knows.
        """
        forms = {(str(form), name) for name, path in roots.items() for form in _forms(path)}
        named = sorted((pair for pair in forms if pair[0] != "/"), key=_longest_first)
        hidden = {folder for folder, _ in named} | {str(f) for o in others for f in _forms(o)}
        return cls(tuple(named), tuple(sorted(hidden - {"/"}, key=len, reverse=True)))

    def only(self, *paths: str) -> RootNames:
        """These, but of the roots only those that paths of clients name; nobody learns of another one."""
        known = {path.partition("/")[0] for path in paths}
        return replace(self, names=tuple(pair for pair in self.names if pair[1] in known))

    def before(self, folder: Path, name: str) -> RootNames:
        """These, and first of all one more folder, below a root, that is known by another name."""
        forms = sorted((str(form), name) for form in _forms(folder))
        return replace(self, names=(*forms, *self.names))

    def text(self, text: str) -> str:
        """The text with every root's folder replaced by its name, however it is written."""
        for folder, name in self.names:
            text = _place(folder).sub(name.replace("\\", r"\\"), text)
        for folder in self.hidden:
            text = _anything_in(folder).sub(HIDDEN, text)
        return text

    def problem(self, document: dict[str, Any]) -> dict[str, Any]:
        """The problem document with its sentences in the client's words."""
        return {k: v if k in _UNTOLD else self._everywhere(v) for k, v in document.items()}

    def answer(self, document: dict[str, Any]) -> dict[str, Any]:
        """The object of a command, with paths and sentences in the client's words; names stay as they are."""
        return {name: self._told(value) for name, value in document.items()}

    def _everywhere(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {k: self._everywhere(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._everywhere(v) for v in value]
        return value

    def _told(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, list):
            return value
        return [self._entry(entry) for entry in value]

    def _entry(self, entry: Any) -> Any:
        if isinstance(entry, str):
            return self.text(entry)
        if isinstance(entry, dict) and "command" in entry:  # one of several plans
            return self.answer(entry)
        if isinstance(entry, dict) and isinstance(entry.get("detail"), str):
            return {**entry, "detail": self.text(entry["detail"])}
        return entry


@dataclass(frozen=True)
class Wording:
    """The words of one conversion's client."""

    request: ConversionRequest
    names: RootNames

    @classmethod
    def of(
        cls, roots: Mapping[str, Path], request: ConversionRequest, held: Path | None = None
    ) -> Wording:
        """Args: held: where the source is held, if anywhere; the client knows only the source."""
        targets = (goal.target for goal in goals(request))
        names = RootNames.of(roots).only(request.source, *targets)
        return cls(request, names if held is None else names.before(held, request.source))

    def text(self, text: str) -> str:
        """The text with every root's folder replaced by its name."""
        return self.names.text(text)

    def problem(self, document: dict[str, Any]) -> dict[str, Any]:
        """The problem document with its sentences in the client's words."""
        return self.names.problem(document)

    def reports(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reports, with source and target as they were asked for."""
        return [
            {
                **self.names.answer(report),
                "source": self.request.source,
                "target": goal.target,
            }
            for report, goal in zip(reports, goals(self.request), strict=True)
        ]


@cache
def _place(folder: str) -> re.Pattern[str]:
    """A folder in a text: not in the middle of a name, nor where another name only begins like it."""
    return re.compile(rf"(?<![\w.%-]){_spelled(folder)}(?![^/\s'\"`)\],;:.?\\&])")


@cache
def _anything_in(folder: str) -> re.Pattern[str]:
    """A folder, and whatever seems to follow of a path."""
    return re.compile(rf"{_spelled(folder)}[^\s'\"`,;]*")


def _spelled(folder: str) -> str:
    """What matches a folder, as it is or as Python, JSON, C++, URLs and HTML write it."""
    return "".join(re.escape(c) if _PLAIN.fullmatch(c) else _ways_to_write(c) for c in folder)


def _ways_to_write(character: str) -> str:
    octets, number = os.fsencode(character), ord(character)
    ways = [character, f"\\{character}", ascii(character)[1:-1], html.escape(character)]
    ways += [json.dumps(character)[1:-1], f"&#{number};", f"&#x{number:x};"]
    ways += [
        "".join(form.format(o) for o in octets) for form in ("%{:02X}", "\\x{:02x}", "\\{:03o}")
    ]
    ordered = sorted(set(ways), key=len, reverse=True)
    return f"(?i:{'|'.join(map(re.escape, ordered))})"


def _longest_first(pair: tuple[str, str]) -> tuple[int, str, str]:
    return (-len(pair[0]), *pair)


def _forms(path: Path) -> set[Path]:
    return {path.absolute(), path.resolve()}
