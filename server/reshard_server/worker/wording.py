"""Rewrites the library's messages for clients: names of roots and paths below them, never folders of this host or URLs."""

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

from reshard.storage.location import Location, is_in_hub, locate
from reshard_server.auth.hub_names import named_for_clients
from reshard_server.schemas.conversion import (
    JobRequest,
    OneDelta,
    paths_of,
    targets_of,
)

HIDDEN = "(a folder of the server)"
"""Replaces a folder that has no name for the client."""

_PLAIN = re.compile("[A-Za-z0-9/_.-]")
"""Characters that every quoting style writes as they are."""

_UNCHANGED = frozenset({"type", "title", "field", "instance", "error"})
"""Members of a problem whose text does not come from a library."""


@dataclass(frozen=True)
class RootNames:
    """Real folders and URLs, and the names by which clients know them, the longest first.

    Attributes:
        hidden: folders that have no name for the client; paths in them become ``HIDDEN``.
    """

    names: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, roots: Mapping[str, Location], *others: Path) -> RootNames:
        """The names of all roots.

        Args:
            others: folders of the server that are hidden from clients.
        """
        forms = {(form, name) for name, place in roots.items() for form in _texts(place)}
        named = sorted(
            (pair for pair in forms if pair[0] != "/"), key=lambda pair: (-len(pair[0]), *pair)
        )
        hidden = {folder for folder, _ in named} | {f for o in others for f in _forms(o)}
        return cls(tuple(named), tuple(sorted(hidden - {"/"}, key=len, reverse=True)))

    def only(self, *paths: str) -> RootNames:
        """Only the roots that these paths of the client name; the client learns of no other root."""
        known = {path.partition("/")[0] for path in paths}
        return replace(self, names=tuple(pair for pair in self.names if pair[1] in known))

    def before(self, folder: Location, name: str) -> RootNames:
        """One more folder below a root, with another name, that is looked for first."""
        forms = sorted((form, name) for form in _texts(folder))
        return replace(self, names=(*forms, *self.names))

    def text(self, text: str) -> str:
        """The text with every root's folder replaced by its name, in any spelling."""
        for folder, name in self.names:
            if is_in_hub(folder):
                text = named_for_clients(text, folder, name)
            text = _place(folder).sub(name.replace("\\", r"\\"), text)
        for folder in self.hidden:
            text = _anything_in(folder).sub(HIDDEN, text)
        return text

    def problem(self, document: dict[str, Any]) -> dict[str, Any]:
        """The problem document with the client's paths in its sentences."""
        return {k: v if k in _UNCHANGED else self._everywhere(v) for k, v in document.items()}

    def answer(self, document: dict[str, Any]) -> dict[str, Any]:
        """The JSON object of a command with the client's paths; names of tensors stay as they are."""
        return {name: self._value(value) for name, value in document.items()}

    def _everywhere(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {k: self._everywhere(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._everywhere(v) for v in value]
        return value

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._entry(value)
        if not isinstance(value, list):
            return value
        return [self._entry(entry) for entry in value]

    def _entry(self, entry: Any) -> Any:
        if isinstance(entry, str):
            return self.text(entry)
        if isinstance(entry, dict) and "command" in entry:  # one plan of several
            return self.answer(entry)
        for said in ("detail", "problem"):  # of a tensor, and of a version
            if isinstance(entry, dict) and isinstance(entry.get(said), str):
                return {**entry, said: self.text(entry[said])}
        return entry


@dataclass(frozen=True)
class Wording:
    """Rewrites the messages of one conversion for its client."""

    request: JobRequest
    names: RootNames

    @classmethod
    def of(
        cls, roots: Mapping[str, Location], request: JobRequest, links: Path | None = None
    ) -> Wording:
        """The wording for a conversion.

        Args:
            links: the folder of hard links that is read instead of the source, if any; the client knows only
                the source.
        """
        names = RootNames.of(roots).only(*paths_of(request))
        if links is not None:
            names = names.before(locate(links), request.source)
        return cls(request, names)

    def text(self, text: str) -> str:
        """The text with every root's folder replaced by its name."""
        return self.names.text(text)

    def problem(self, document: dict[str, Any]) -> dict[str, Any]:
        """The problem document with the client's paths in its sentences."""
        return self.names.problem(document)

    def reports(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reports, with source and target as the request names them; that of a delta with both checkpoints."""
        return [
            {**self.names.answer(report), **self._read(report), "target": requested.target}
            for report, requested in zip(reports, targets_of(self.request), strict=True)
        ]

    def _read(self, report: dict[str, Any]) -> dict[str, str]:
        if isinstance(self.request, OneDelta) and "old" in report:
            return {"old": self.request.old, "new": self.request.new}
        return {"source": self.request.source}


@cache
def _place(folder: str) -> re.Pattern[str]:
    """Matches a folder in a text, but not within a name or as the beginning of a longer name."""
    return re.compile(rf"(?<![\w.%-]){_spelled(folder)}(?![^/\s'\"`)\],;:.?\\&])")


@cache
def _anything_in(folder: str) -> re.Pattern[str]:
    """Matches a folder and the rest of the path after it."""
    return re.compile(rf"{_spelled(folder)}[^\s'\"`,;]*")


def _spelled(folder: str) -> str:
    """A pattern for a folder, unquoted or as Python, JSON, C++, URLs and HTML write it."""
    return "".join(re.escape(c) if _PLAIN.fullmatch(c) else _spellings(c) for c in folder)


def _spellings(character: str) -> str:
    octets, number = os.fsencode(character), ord(character)
    spellings = [character, f"\\{character}", ascii(character)[1:-1], html.escape(character)]
    spellings += [json.dumps(character)[1:-1], f"&#{number};", f"&#x{number:x};"]
    spellings += [
        "".join(form.format(o) for o in octets) for form in ("%{:02X}", "\\x{:02x}", "\\{:03o}")
    ]
    ordered = sorted(set(spellings), key=len, reverse=True)
    return f"(?i:{'|'.join(map(re.escape, ordered))})"


def _texts(place: Location) -> set[str]:
    """The texts by which messages name a place: a folder with links and without, or a URL."""
    return {str(place)} if place.local is None else _forms(place.local)


def _forms(path: Path) -> set[str]:
    return {str(path.absolute()), str(path.resolve())}
