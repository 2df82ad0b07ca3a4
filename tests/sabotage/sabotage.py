"""Sabotage: a text of a file of the library, and the text that takes its place."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class LostTextError(Exception):
    """A sabotage names a text that its file does not have exactly once."""


class Sabotage(Struct, frozen=True):
    """A small defect.

    Attributes:
        name: a few words with hyphens.
        what: what goes wrong, in one line.
        file: from the root of the repository.
        text: what the file has exactly once.
        replacement: what takes its place.
        tests: ids of tests; one of them at least must fail.
    """

    name: str
    what: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def applied(self, root: Path) -> str:
        """The file below ``root`` with the defect. Raises LostTextError where the text is not there exactly once."""
        source = (root / self.file).read_text("utf-8") if (root / self.file).is_file() else ""
        if source.count(self.text) != 1:
            raise LostTextError(
                f"the text of sabotage {self.name} is no longer in {self.file}: rewrite it "
                f"(expected once, found {source.count(self.text)} times)"
            )
        return source.replace(self.text, self.replacement)
