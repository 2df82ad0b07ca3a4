"""JSON from strangers: size and depth are capped before anything is built from it.

The depth is found without recursion and before parsing: each bracket outside of strings counts +1
or -1, and the largest running sum is the depth.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from pathlib import Path
from typing import Any, TypeVar

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.storage.local import close_after_reading, read_at, reason_and_remedy

MAX_JSON_BYTES = 1 << 30
"""A tree of 100,000 tensors takes 30 MB; a sharding file that lists 16,384 devices a tensor, 500 MB."""

MAX_JSON_DEPTH = 64
"""Orbax nests 6 deep; users' own metadata deeper, but not this deep."""

_IRRELEVANT = bytes(set(range(256)) - set(b'[]{}"'))

T = TypeVar("T")


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The whole file, refused before reading where it is larger than ``max_bytes`` or no plain file.

    Raises StorageError where the system refuses, FormatError where the file does not qualify.
    """
    try:
        return _read_plain(path, max_bytes)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {reason_and_remedy(error)}") from error


def _read_plain(path: Path, max_bytes: int) -> bytes:
    # Without O_NONBLOCK a named pipe put in place of a metadata file would hang the reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_unfit(os.fstat(descriptor), path, max_bytes)
        return read_at(descriptor, max_bytes, 0)
    finally:
        close_after_reading(descriptor)


def _refuse_unfit(status: os.stat_result, path: Path, max_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{path} should be a plain file with metadata, but is none")
    if status.st_size > max_bytes:
        raise FormatError(
            f"{path} has {status.st_size:,} bytes, but at most {max_bytes:,} bytes of metadata are "
            "read; this is no checkpoint that can be handled safely"
        )


def read_json(path: Path) -> Any:
    """The value in a JSON file; errors name the file and the line."""
    return parse_json(read_bytes(path), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """The value of JSON text; ``where`` names its origin in errors.

    Raises CorruptError for what is no JSON, FormatError for what is nested too deeply.
    """
    text = checked_text(data, where)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise not_json(where, text, error.pos, error.msg) from None
    except ValueError as error:  # a number of thousands of digits
        raise not_json(where, text, 0, str(error)) from None


def checked_text(data: bytes, where: str) -> str:
    """The text of JSON that is not nested too deeply; CorruptError where it is no UTF-8."""
    if (depth := _depth(data)) > MAX_JSON_DEPTH:
        raise FormatError(
            f"{where} nests {depth} levels deep, but metadata of at most {MAX_JSON_DEPTH} is read"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-8")
        raise not_json(where, text, len(text), "bytes that are no UTF-8") from None


def not_json(where: str, text: str, position: int, found: str) -> CorruptError:
    """The error for text that stops being JSON at ``position``."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return CorruptError(
        f"{where}, line {line}, column {column}: expected JSON, found: {found}; the file is damaged "
        "or was cut short; restore it from a copy"
    )


def _depth(data: bytes) -> int:
    import numpy as np

    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(unescaped.translate(None, _IRRELEVANT), np.uint8)
    in_string = np.cumsum(codes == ord('"'), dtype=np.int32) & 1
    brackets = codes[(in_string == 0) & (codes != ord('"'))]
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0))


def expect(value: Any, kind: type[T], what: str, where: str) -> T:
    """``value`` itself, if it is a ``kind``; else a CorruptError that names ``what`` and ``where``."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise CorruptError(
        f"{where}: {what} should be of type {kind.__name__}, but is {shorten(value)}"
    )


def expect_sizes(value: Any, what: str, where: str, smallest: int = 0) -> tuple[int, ...]:
    """A list of integers from ``smallest`` up to 2^62, as a tuple."""
    sizes = tuple(
        expect(n, int, f"an entry of {what}", where) for n in expect(value, list, what, where)
    )
    if any(n < smallest or n > 1 << 62 for n in sizes):
        raise CorruptError(
            f"{where}: {what} should hold numbers from {smallest} to 2^62, but is {shorten(value)}"
        )
    return sizes


def shorten(value: Any) -> str:
    """A value's text for a message, cut after 80 characters."""
    text = _limited_repr().repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _limited_repr() -> reprlib.Repr:
    """``repr`` that looks at a few parts of a value only, for it may have millions."""
    limited = reprlib.Repr()
    limited.maxlist = limited.maxdict = limited.maxtuple = 16
    limited.maxstring = limited.maxother = limited.maxlong = 80
    return limited
