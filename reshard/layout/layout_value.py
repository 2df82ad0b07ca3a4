"""CheckedValue: a part of plain data that is read strictly, and that knows its place for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import Struct

from reshard.errors import MAX_SHOWN_CHARACTERS, LayoutError, shorten
from reshard.layout.layout_text import Document, Steps
from reshard.patterns.compile import Pattern, compile_pattern, shown


class CheckedValue(Struct, frozen=True):
    """A part of a document, with checks that name its file, line and key when they fail.

    Every method raises LayoutError if the value has another form.
    """

    data: Any
    document: Document
    steps: Steps = ()

    @property
    def place(self) -> str:
        """``file:line`` of the value."""
        return self.document.place(self.steps)

    @property
    def key(self) -> str:
        """The path of keys, such as ``rules[2].match``; "" for the whole document."""
        return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.steps).lstrip(".")

    def refuse(self, problem: str) -> NoReturn:
        raise LayoutError(": ".join(filter(None, (self.place, self.key, problem))))

    def expect(self, expected: str) -> NoReturn:
        self.refuse(f"expected {expected}, found {_brief(self.data)}")

    def mapping(
        self, known: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, CheckedValue]:
        """The values by key; a key beyond ``known`` or a missing one of ``required`` is refused."""
        if not isinstance(self.data, dict):
            self.expect(f"a mapping with the keys {', '.join(known)}")
        for key in self.data:
            if key not in known:
                self.at(key).refuse(_unknown("key", key, known))
        for key in required:
            if key not in self.data:
                self.refuse(f"the key {key!r} is missing")
        return {key: self.at(key) for key in self.data}

    def at(self, step: str | int) -> CheckedValue:
        """The value below this one at a key or position."""
        return CheckedValue(self.data[step], self.document, (*self.steps, step))

    def items(self, expected: str) -> list[CheckedValue]:
        """The values of a list."""
        if not isinstance(self.data, list | tuple):
            self.expect(expected)
        return [self.at(i) for i in range(len(self.data))]

    def text(self, expected: str) -> str:
        """A string that is not empty."""
        if not isinstance(self.data, str) or not self.data:
            self.expect(expected)
        return self.data

    def whole(self, expected: str, least: int | None = None) -> int:
        """A whole number, not below ``least``."""
        if not isinstance(self.data, int) or isinstance(self.data, bool):
            self.expect(expected)
        if least is not None and self.data < least:
            self.expect(expected)
        return self.data

    def choice(self, kind: str, known: Sequence[str]) -> str:
        """One of the strings of ``known``."""
        if not isinstance(self.data, str):
            self.expect(f"one of {', '.join(known)}")
        if self.data not in known:
            self.refuse(_unknown(kind, self.data, known))
        return self.data

    def regex(self) -> str:
        """A regular expression that compiles."""
        return self.compiled().pattern

    def compiled(self) -> Pattern:
        """A regular expression."""
        pattern = self.text("a regular expression")
        subject = f"{self.place}: {self.key}: {shown(pattern)}"
        return compile_pattern(pattern, subject, LayoutError, self.document.counts)


def _unknown(kind: str, found: Any, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # only an error needs it

    near = get_close_matches(str(found)[:100], known, n=1)
    hint = f"did you mean {near[0]!r}? known" if near else "known"
    return f"unknown {kind} {_brief(found)}; {hint}: {', '.join(known)}"


def _brief(data: Any) -> str:
    if isinstance(data, dict | list | tuple) and len(data) > 8:
        return f"a {type(data).__name__} of {len(data)} entries"
    return "null" if data is None else shorten(data, MAX_SHOWN_CHARACTERS)
