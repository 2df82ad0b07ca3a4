"""Reads a msgpack file value by value: skipped bytes, such as those of arrays, are never held in memory.

The format: https://github.com/msgpack/msgpack/blob/master/spec.md. A reader of this project's own, since the arrays of a file
may take gigabytes, and the packages msgspec and msgpack hold all of a file and tell no offsets. Files come from
strangers: a length is compared with the rest of the file before anything is made of it.
"""

from __future__ import annotations

import struct
from typing import Literal

from msgspec import Struct

from reshard.errors import CorruptError
from reshard.storage.base import FileStatus
from reshard.storage.calls import read_part
from reshard.storage.location import Location

MsgpackKind = Literal["nil", "bool", "int", "float", "str", "bin", "ext", "array", "map"]

WINDOW_BYTES = 64 << 10
"""Read at once where short reads are cheap."""

FIRST_REQUEST_BYTES, MOST_REQUEST_BYTES = 256 << 10, 4 << 20
"""Asked for at once where requests take long: little behind a large array, more and more where nothing is passed over.
``recent_reads`` keeps up to the second."""

_NUMBERS: dict[int, tuple[MsgpackKind, struct.Struct]] = {
    0xCA: ("float", struct.Struct(">f")), 0xCB: ("float", struct.Struct(">d")),
    0xCC: ("int", struct.Struct(">B")), 0xCD: ("int", struct.Struct(">H")),
    0xCE: ("int", struct.Struct(">I")), 0xCF: ("int", struct.Struct(">Q")),
    0xD0: ("int", struct.Struct(">b")), 0xD1: ("int", struct.Struct(">h")),
    0xD2: ("int", struct.Struct(">i")), 0xD3: ("int", struct.Struct(">q")),
}  # fmt: skip
_CONSTANTS: dict[int, tuple[MsgpackKind, bool | None]] = {
    0xC0: ("nil", None), 0xC2: ("bool", False), 0xC3: ("bool", True),
}  # fmt: skip
_SIZED: dict[int, tuple[MsgpackKind, int]] = {
    0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4), 0xC7: ("ext", 1), 0xC8: ("ext", 2),
    0xC9: ("ext", 4), 0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4), 0xDC: ("array", 2),
    0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
"""The kinds whose size follows, and the bytes of that size."""
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_SHORT: tuple[tuple[int, int, MsgpackKind], ...] = (
    (0x80, 0x8F, "map"), (0x90, 0x9F, "array"), (0xA0, 0xBF, "str"),
)  # fmt: skip
_LEAST_BYTES: dict[MsgpackKind, int] = {"map": 2}
"""The least bytes of an entry; one for all other kinds."""


class Header(Struct, frozen=True):
    """The beginning of a value.

    Attributes:
        value: of a number, a bool or nil, which end with it.
        size: bytes of a str, bin or ext that follow, or entries of an array or a map.
        code: the type of an ext.
    """

    kind: MsgpackKind
    value: bool | int | float | None = None
    size: int = 0
    code: int = 0


class MsgpackCursor:
    """A position in a msgpack file; reading moves it forward. Errors name the file and the byte.

    Args:
        found: the status of the file.
        where: names the file in messages.
    """

    def __init__(self, file: Location, found: FileStatus, where: str = "") -> None:
        self.where = where or str(file)
        self.at = 0
        self.end = found.nbytes
        self._file, self._found = file, found
        self._least, self._most = _window_sizes(file)
        self._window, self._start, self._window_bytes = b"", 0, self._least

    def header(self) -> Header:
        """The header here. Raises CorruptError for a byte that begins no value, and for a size beyond the file's end."""
        start = self.at
        first = self.take(1)[0]
        if first <= 0x7F or first >= 0xE0:
            return Header("int", first if first <= 0x7F else first - 0x100)
        if first in _CONSTANTS:
            return Header(*_CONSTANTS[first])
        if first in _NUMBERS:
            kind, packed = _NUMBERS[first]
            return Header(kind, packed.unpack(self.take(packed.size))[0])
        return self._sized(first, start)

    def _sized(self, first: int, start: int) -> Header:
        code = 0
        if first in _SIZED:
            kind, width = _SIZED[first]
            size = int.from_bytes(self.take(width), "big")
        elif first in _FIXED_EXT:
            kind, size = "ext", _FIXED_EXT[first]
        else:
            low, kind = self._short(first, start)
            size = first - low
        if kind == "ext":
            code = int.from_bytes(self.take(1), "big", signed=True)
        if size * _LEAST_BYTES.get(kind, 1) > self.end - self.at:
            raise self.corrupt(
                f"the {kind} that begins here has {size:,} {'entries' if kind in ('map', 'array') else 'bytes'}, more "
                f"than fit into the {self.end - self.at:,} bytes that follow",
                start,
            )
        return Header(kind, None, size, code)

    def _short(self, first: int, start: int) -> tuple[int, MsgpackKind]:
        for low, high, kind in _SHORT:
            if low <= first <= high:
                return low, kind
        raise self.corrupt(f"expected a value, found the byte {first:#04x}", start)

    def take(self, nbytes: int) -> bytes:
        """The next bytes, all of which must be there."""
        if nbytes > self.end - self.at:
            raise self.corrupt(f"expected {nbytes:,} more bytes, found {self.end - self.at:,}")
        if not self._start <= self.at <= self._start + len(self._window) - nbytes:
            self._read_window(nbytes)
        at = self.at - self._start
        self.at += nbytes
        return self._window[at : at + nbytes]

    def _read_window(self, nbytes: int) -> None:
        passed = self.at - self._start - len(self._window)
        if self._window:
            is_near = passed <= self._window_bytes
            self._window_bytes = min(2 * self._window_bytes, self._most) if is_near else self._least
        wanted = min(max(nbytes, self._window_bytes), self.end - self.at)
        self._window = read_part(self._file, self._found, self.at, wanted, self.where)
        self._start = self.at
        if len(self._window) < nbytes:
            raise self.corrupt("the file became shorter while it was read")

    def skip(self, nbytes: int) -> int:
        """Passes over bytes, all of which must be there; returns the offset of the first."""
        start = self.at
        if nbytes > self.end - start:
            raise self.corrupt(f"expected {nbytes:,} more bytes, found {self.end - start:,}")
        self.at += nbytes
        return start

    def text(self, nbytes: int) -> str:
        """The next bytes as UTF-8."""
        start = self.at
        try:
            return self.take(nbytes).decode()
        except UnicodeDecodeError:
            raise self.corrupt("expected text in UTF-8", start) from None

    def corrupt(self, what: str, at: int | None = None) -> CorruptError:
        """The error for a file that is wrong at a byte, by default here."""
        return CorruptError(
            f"{self.where}, byte {self.at if at is None else at:,}: {what}; the file is damaged or was cut short; restore it from a "
            "copy"
        )


def first_bytes(file: Location, found: FileStatus) -> bytes:
    """The first bytes of a file, which a cursor then need not read again."""
    return read_part(file, found, 0, min(_window_sizes(file)[0], found.nbytes), str(file))


def _window_sizes(file: Location) -> tuple[int, int]:
    """The bytes of the first read, and the most of any read."""
    sizes = (FIRST_REQUEST_BYTES, MOST_REQUEST_BYTES)
    first, most = (file.read_bytes(WINDOW_BYTES, size) for size in sizes)
    return first, most
