"""JSON from strangers: size and depth are capped before anything is built from it.

The depth is found without recursion and before parsing: strings are cut out, each bracket left
counts +1 or -1, and the largest running sum is the depth.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from reshard.errors import CorruptError, FormatError, StorageError

MAX_JSON_BYTES = 1 << 30
"""A tree of 100,000 tensors takes 30 MB; a sharding file that lists 16,384 devices a tensor, 500 MB."""

MAX_JSON_DEPTH = 64
"""Orbax nests 6 deep; users' own metadata deeper, but not this deep."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

ObjectHook = Callable[[dict[str, Any]], Any]
T = TypeVar("T")


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The whole file, refused before reading where it is larger than ``max_bytes`` or no plain file.

    Raises StorageError where the system refuses, FormatError where the file does not qualify.
    """
    try:
        # Without O_NONBLOCK a named pipe put in place of a metadata file would hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} should be a plain file with metadata, but is none")
        if status.st_size > max_bytes:
            raise FormatError(
                f"{path} has {status.st_size:,} bytes, but at most {max_bytes:,} bytes of metadata "
                "are read; this is no checkpoint that can be handled safely"
            )
        return _read_all(file.read, path)


def _read_all(read: Callable[[], bytes], path: Path) -> bytes:
    try:
        return read()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path, hook: ObjectHook | None = None) -> Any:
    """The value in a JSON file; errors name the file and the line.

    Args:
        hook: called with each object from the inside out, and its result taken instead; for
            sharing equal parts before the whole is built.
    """
    return parse_json(read_bytes(path), str(path), hook)


def parse_json(data: bytes, where: str, hook: ObjectHook | None = None) -> Any:
    """The value of JSON text; ``where`` names its origin in errors.

    Raises CorruptError for what is no JSON, FormatError for what is nested too deeply.
    """
    if (depth := _depth(data)) > MAX_JSON_DEPTH:
        raise FormatError(
            f"{where} nests {depth} levels deep, but metadata of at most {MAX_JSON_DEPTH} is read"
        )
    try:
        return json.loads(data.decode("utf-8"), object_hook=hook)
    except json.JSONDecodeError as error:
        raise _not_json(where, error.lineno, error.colno, error.msg, len(data)) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise _not_json(where, line, column, "bytes that are no UTF-8", len(data)) from None
    except ValueError as error:  # a number of thousands of digits
        raise CorruptError(f"{where} is not valid JSON ({error}); restore it from a copy") from None


def _not_json(where: str, line: int, column: int, reason: str, size: int) -> CorruptError:
    return CorruptError(
        f"{where}, line {line}, column {column}: expected JSON, found: {reason}; the file of "
        f"{size:,} bytes is damaged or was cut short; restore it from a copy"
    )


def _depth(data: bytes) -> int:
    import numpy as np

    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    if len(brackets) <= MAX_JSON_DEPTH:
        return 0
    codes = np.frombuffer(brackets, np.uint8)
    steps = np.where((codes == ord("[")) | (codes == ord("{")), 1, -1).astype(np.int32)
    return int(np.cumsum(steps, dtype=np.int32).max())


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
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
