"""Wording: what the library says, in the client's words: roots and paths below them, not this machine's paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard_server.models.conversion import ConversionRequest, goals


@dataclass(frozen=True)
class RootNames:
    """Real folders and the names that clients know them by, the longest first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, roots: Mapping[str, Path]) -> RootNames:
        forms = {(str(form), name) for name, path in roots.items() for form in _forms(path)}
        return cls(tuple(sorted(forms, key=lambda pair: len(pair[0]), reverse=True)))

    def before(self, folder: Path, name: str) -> RootNames:
        """These, and first of all one more folder, below a root, that is known by another name."""
        forms = sorted((str(form), name) for form in _forms(folder))
        return RootNames((*forms, *self.names))

    def text(self, text: str) -> str:
        """The text with every root's folder replaced by its name."""
        for folder, name in self.names:
            if folder in text:
                text = re.sub(_place(folder), name.replace("\\", r"\\"), text)
        return text

    def problem(self, document: dict[str, Any]) -> dict[str, Any]:
        """The problem document with its sentences in the client's words."""
        return {k: self.text(v) if isinstance(v, str) else v for k, v in document.items()}

    def answer(self, document: dict[str, Any]) -> dict[str, Any]:
        """The object of a command, with paths and sentences in the client's words; names stay as they are."""
        return {name: self._told(value) for name, value in document.items()}

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
        names = RootNames.of(roots)
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
                **report,
                "source": self.request.source,
                "target": goal.target,
                "warnings": [self.text(w) for w in report["warnings"]],
            }
            for report, goal in zip(reports, goals(self.request), strict=True)
        ]


def _place(folder: str) -> str:
    """A folder in a sentence: not where another path only goes on like it."""
    return rf"(?<![^\s'\"`(\[=:,;]){re.escape(folder)}(?![^/\s'\"`)\],;:.?])"


def _forms(path: Path) -> set[Path]:
    return {path.absolute(), path.resolve()}
