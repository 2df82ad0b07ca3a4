"""Reads a large JSON document member by member, without building it in memory.

The metadata of 100,000 tensors would take 400 MiB as dicts and lists; a cursor needs only the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from reshard.errors import CorruptError, FormatError
from reshard.formats.json.safe_json import checked_text, not_json, read_bytes
from reshard.formats.limits import MAX_VALUE_CHARACTERS
from reshard.storage.location import Location

_SPACE = re.compile(r"\s*", re.ASCII)
_OBJECT = re.compile(r"\{\s*\}?", re.ASCII)
_ARRAY = re.compile(r"\[\s*\]?", re.ASCII)
_COLON = re.compile(r"\s*:\s*", re.ASCII)
_AFTER_MEMBER = re.compile(r"\s*(?:\}|,\s*)", re.ASCII)
_AFTER_ELEMENT = re.compile(r"\s*(?:\]|,\s*)", re.ASCII)
_DECODER = json.JSONDecoder()

_FIRST_WINDOW, _GROWTH = 4 << 10, 64


class JsonCursor:
    """A position in JSON text; reading a value moves it forward.

    ``members`` and ``elements`` stop at each value; the caller reads it, with ``value`` or by iterating over it,
    before the next step. Errors name the file and the line.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        self._text = checked_text(data, where)
        self._at = 0
        self._match(_SPACE, "")

    @classmethod
    def open(cls, file: Location) -> JsonCursor:
        """A cursor at the start of the text of a file."""
        return cls(read_bytes(file), str(file))

    def value(self) -> Any:
        """The whole value here, as Python objects; FormatError for a list or object of absurd size."""
        if self._text.startswith(("[", "{"), self._at) and (found := self._windowed()) is not None:
            return found
        return self._decoded()

    def _windowed(self) -> Any:
        """The list or object here, parsed from as little text as possible; None if it is not JSON."""
        left, size = len(self._text) - self._at, _FIRST_WINDOW
        while size < min(left, MAX_VALUE_CHARACTERS):
            try:
                found, used = _DECODER.raw_decode(self._text[self._at : self._at + size])
            except ValueError:
                size *= _GROWTH
                continue
            self._at += used
            return found
        if left > MAX_VALUE_CHARACTERS:
            return self._last_window()
        return None

    def _last_window(self) -> Any:
        window = self._text[self._at : self._at + MAX_VALUE_CHARACTERS]
        try:
            found, used = _DECODER.raw_decode(window)
        except ValueError:
            line = self._text.count("\n", 0, self._at) + 1
            raise FormatError(
                f"{self.where}: the value that begins in line {line} is not JSON, or longer than the "
                f"{MAX_VALUE_CHARACTERS:,} characters that are read of one value; restore the file from a copy"
            ) from None
        self._at += used
        return found

    def _decoded(self) -> Any:
        try:
            found, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise not_json(self.where, self._text, error.pos, error.msg) from None
        except ValueError as error:  # a number of thousands of digits
            raise not_json(self.where, self._text, self._at, str(error)) from None
        return found

    def members(self) -> Iterator[str]:
        """The keys of the object here, each with the cursor at its value."""
        if self._match(_OBJECT, "an object").endswith("}"):
            return
        while True:
            yield self._key()
            if self._match(_AFTER_MEMBER, "',' or '}'").endswith("}"):
                return

    def elements(self) -> Iterator[None]:
        """Stops with the cursor at each value of the array here."""
        if self._match(_ARRAY, "an array").endswith("]"):
            return
        while True:
            yield
            if self._match(_AFTER_ELEMENT, "',' or ']'").endswith("]"):
                return

    def finish(self) -> None:
        """A CorruptError unless the text ends here."""
        self._match(_SPACE, "")
        if self._at != len(self._text):
            raise not_json(self.where, self._text, self._at, "more text after the end")

    def _key(self) -> str:
        if not self._text.startswith('"', self._at):
            raise self._unexpected("a key in quotes")
        key: str = self.value()
        self._match(_COLON, "':'")
        return key

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._unexpected(what)
        self._at = match.end()
        return match[0].rstrip()

    def _unexpected(self, what: str) -> CorruptError:
        found = repr(self._text[self._at]) if self._at < len(self._text) else "the end"
        return not_json(self.where, self._text, self._at, f"{found} in place of {what}")
