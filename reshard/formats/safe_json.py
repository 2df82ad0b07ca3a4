"""JSON from strangers: size, depth and number of values are capped before anything is built from it.

The depth is found without recursion and before parsing: each bracket outside of strings counts +1
or -1, and the largest running sum is the depth. Commas and brackets bound the number of values.

A large document is read member by member, without building it in memory: the metadata of 100,000 tensors would take 400 MiB as dicts and
lists; a cursor needs only the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.limits import (
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    MAX_VALUE_CHARACTERS,
)
from reshard.storage.base import FileStatus
from reshard.storage.calls import read_part
from reshard.storage.location import Location

_BLOCK_BYTES = 1 << 20
_FOLLOWED_DEPTH = 1 << 20
_IRRELEVANT = bytes(set(range(256)) - set(b'[]{}"'))

T = TypeVar("T")


def read_bytes(
    file: Location,
    max_bytes: int = MAX_JSON_BYTES,
    what: str = "",
    *,
    found: FileStatus | None = None,
) -> bytes:
    """The whole file, refused before reading if it is larger than ``max_bytes`` or not a plain file.

    ``what`` names the use of the file, in errors. ``found``: its status, where it is known.

    Raises StorageError if it is not there or the store refuses, FormatError if the file is refused.
    """
    found = found or file.status(what) or FileStatus("file")  # opening says that it is not there
    if found.kind != "file":
        raise FormatError(f"{file} should be a plain file with metadata, but is not")
    if found.nbytes > max_bytes:
        raise FormatError(
            f"{file} has {found.nbytes:,} bytes, but at most {max_bytes:,} bytes of metadata are "
            "read; this checkpoint cannot be handled safely"
        )
    return read_part(file, found, 0, found.nbytes, what)


def read_json(file: Location) -> Any:
    """The value in a JSON file; errors name the file and the line."""
    return json_value(read_bytes(file), str(file))


def json_value(data: bytes, where: str) -> Any:
    """The value of JSON text; ``where`` names its origin in errors.

    Raises CorruptError for invalid JSON, FormatError for text that is nested too deeply or has too many values.
    """
    text = checked_text(data, where)
    refuse_many_values(data, where)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise not_json(where, text, error.pos, error.msg) from None
    except ValueError as error:  # a number of thousands of digits
        raise not_json(where, text, 0, str(error)) from None


def refuse_many_values(data: bytes, where: str, limit: int = MAX_JSON_VALUES) -> None:
    """Raises FormatError for JSON text that may have more values than are built at once."""
    most = data.count(b",") + data.count(b"[") + data.count(b"{")
    if most > limit:
        raise FormatError(
            f"{where} may have {most:,} values, but metadata of at most {limit:,} is read as a whole; "
            "this checkpoint cannot be handled safely"
        )


def checked_text(data: bytes, where: str) -> str:
    """The text of JSON that is not nested too deeply; CorruptError if it is not UTF-8."""
    # JSON has no NUL bytes, but a sparse file of any size is full of them.
    if (position := data.find(0)) >= 0:
        text = data[:position].decode("utf-8", "replace")
        raise not_json(where, text, len(text), "a NUL byte")
    if (depth := _depth(data)) > MAX_JSON_DEPTH:
        raise FormatError(
            f"{where} nests {depth} levels deep; expected at most {MAX_JSON_DEPTH}; restore the file from a copy, or save the "
            "checkpoint with a flatter tree"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-8")
        raise not_json(where, text, len(text), "bytes that are not UTF-8") from None


def not_json(where: str, text: str, position: int, found: str) -> CorruptError:
    """The error for text that stops being JSON at ``position``. FormatError for a pointer or a page in place of the file."""
    refuse_stand_in(text[:START_BYTES].encode(), where)
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return CorruptError(
        f"{where}, line {line}, column {column}: expected JSON, found: {found}; the file is damaged "
        "or was cut short; restore it from a copy"
    )


def _depth(data: bytes) -> int:
    """The nesting depth, or a small number that is not below it; if it is too deep, the depth where counting stopped."""
    # Most texts have too few brackets to be deep, and there may be 100,000 of them.
    if (most := data.count(b"[") + data.count(b"{")) <= MAX_JSON_DEPTH:
        return most
    depth = deepest = in_string = 0
    for block in _blocks(data):
        deepest, depth, in_string = _follow(block, deepest, depth, in_string)
        if deepest > _FOLLOWED_DEPTH:
            break
    return deepest


def _blocks(data: bytes) -> Iterator[bytes]:
    """Pieces of text, none of which ends between a backslash and the character that it escapes."""
    start = 0
    while start < len(data):
        stop = start + _BLOCK_BYTES
        while data[stop - 1 : stop] == b"\\":
            stop += 1
        yield data[start:stop]
        start = stop


def _follow(block: bytes, deepest: int, depth: int, in_string: int) -> tuple[int, int, int]:
    """The deepest level so far, the level at the block's end, and 1 if it ends in a string."""
    import numpy as np

    unescaped = block.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(unescaped.translate(None, _IRRELEVANT), np.uint8)
    quotes = np.cumsum(codes == ord('"'), dtype=np.int32) + in_string & 1
    brackets = codes[(quotes == 0) & (codes != ord('"'))]
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    levels = depth + np.cumsum(steps)
    ends_in = int(quotes[-1]) if len(quotes) else in_string
    return int(levels.max(initial=deepest)), int(levels[-1]) if len(levels) else depth, ends_in


def expect(value: Any, kind: type[T], what: str, where: str) -> T:
    """``value`` itself, if it is a ``kind``; else a CorruptError that names ``what`` and ``where``."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise CorruptError(
        f"{where}: {what} should be of type {kind.__name__}, but is {shorten(value)}"
    )


def expect_texts(value: Any, what: str, each: str, where: str) -> list[str]:
    """A list of strings; ``each`` names one of them."""
    found = expect(value, list, what, where)
    for text in found:
        if type(text) is not str:
            expect(text, str, each, where)
    return found


def expect_sizes(value: Any, what: str, where: str, smallest: int = 0) -> tuple[int, ...]:
    """A list of integers from ``smallest`` up to 2^62, as a tuple."""
    sizes = expect(value, list, what, where)
    for size in sizes:
        if type(size) is not int:  # calling expect for each of a million sizes takes seconds
            expect(size, int, f"an entry of {what}", where)
        if not smallest <= size <= 1 << 62:
            raise CorruptError(
                f"{where}: {what} should contain numbers from {smallest} to 2^62, but is {shorten(value)}"
            )
    return tuple(sizes)


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
        left = len(self._text) - self._at
        if left > _FIRST_WINDOW and self._text.startswith(("[", "{"), self._at):
            found = self._windowed(left)
            if found is not None:
                return found
        return self._decoded()

    def _windowed(self, left: int) -> Any:
        """The list or object here, parsed from as little of the text that is left as possible; None if it is not JSON."""
        size = _FIRST_WINDOW
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
            if not self._text.startswith('"', self._at):
                raise self._unexpected("a key in quotes")
            key: str = self._decoded()
            self._match(_COLON, "':'")
            yield key
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

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._unexpected(what)
        self._at = match.end()
        return match[0].rstrip()

    def _unexpected(self, what: str) -> CorruptError:
        found = repr(self._text[self._at]) if self._at < len(self._text) else "the end"
        return not_json(self.where, self._text, self._at, f"{found} in place of {what}")
