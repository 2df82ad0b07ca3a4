"""Reads a msgpack file value by value: skipped bytes, such as those of arrays, are never held in memory.

The format: https://github.com/msgpack/msgpack/blob/master/spec.md. A reader of this project's own, since the arrays of a file
may take gigabytes, and the packages msgspec and msgpack hold all of a file and tell no offsets. Files come from
strangers: a length is compared with the rest of the file before anything is made of it.

flax.serialization and Orbax add types of numpy arrays, numpy scalars and complex numbers. An array is an ext whose bytes are msgpack again:
``(shape, dtype name, row-major bytes)``. Of an array above 1 GiB both write a map instead, with flat pieces of it::

    {"__msgpack_chunked_array__": True, "shape": {"0": rows, "1": columns}, "chunks": {"0": piece, "1": piece, ...}}

``orbax/checkpoint/msgpack_utils.py`` of Orbax 0.12 and ``flax/serialization.py`` read and write them. Nothing is unpickled:
dtypes of objects are refused, as by both.
"""

from __future__ import annotations

import math
import struct
from typing import Literal

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.limits import MAX_ARRAY_PIECES, MAX_RANK, MAX_TENSOR_BYTES
from reshard.geometry.dtypes import STORED_DTYPES, storage_bytes
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


NDARRAY, COMPLEX, NUMPY_SCALAR, TUPLE = 1, 2, 3, 4
"""Codes of the ext types; only Orbax writes tuples."""

CHUNKED = "__msgpack_chunked_array__"
_MAX_DTYPE_BYTES = 64


class ArrayBytes(Struct, frozen=True):
    """An array in a file.

    Attributes:
        parts: offset and length of each flat piece of its row-major bytes; one, or none for no elements.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that its shape and dtype need."""
        return math.prod(self.shape) * storage_bytes(self.dtype)


def read_extension(cursor: MsgpackCursor, header: Header) -> ArrayBytes | complex:
    """The value of an ext that is no tuple. Raises CorruptError, and FormatError for other types."""
    end = cursor.at + header.size
    if header.code == COMPLEX:
        value: ArrayBytes | complex = _complex(cursor)
    elif header.code in (NDARRAY, NUMPY_SCALAR):
        value = _array(cursor)
        if header.code == NUMPY_SCALAR and value.shape:
            raise cursor.corrupt(f"a numpy scalar should have no shape, but has {value.shape}")
    else:
        raise FormatError(
            f"{cursor.where}, byte {cursor.at:,}: the ext type {header.code} is not known; known are numpy arrays ({NDARRAY}), complex "
            f"numbers ({COMPLEX}), numpy scalars ({NUMPY_SCALAR}) and tuples ({TUPLE}); save the checkpoint with Orbax 0.12"
        )
    check_end(cursor, end)
    return value


def check_end(cursor: MsgpackCursor, end: int) -> None:
    """Raises CorruptError where an ext does not end with its content."""
    if cursor.at != end:
        raise cursor.corrupt(f"an ext type should end here, but ends at byte {end:,}")


def _complex(cursor: MsgpackCursor) -> complex:
    if cursor.header() != Header("array", None, 2):
        raise cursor.corrupt("a complex number should be two numbers, but is not")
    parts = []
    for _ in range(2):
        found = cursor.header().value
        if type(found) not in (int, float):
            raise cursor.corrupt("a part of a complex number should be a number, but is not")
        parts.append(float(found or 0))
    return complex(*parts)


def _array(cursor: MsgpackCursor) -> ArrayBytes:
    if cursor.header() != Header("array", None, 3):
        raise cursor.corrupt("an array should be its shape, dtype and bytes, but is not")
    shape = _shape(cursor)
    dtype = _dtype(cursor)
    header = cursor.header()
    if header.kind not in ("bin", "str"):
        raise cursor.corrupt(f"expected the bytes of an array, found the type {header.kind}")
    return _checked(cursor, dtype, shape, ((cursor.skip(header.size), header.size),))


def _shape(cursor: MsgpackCursor) -> tuple[int, ...]:
    header = cursor.header()
    if header.kind != "array":
        raise cursor.corrupt(f"expected the shape of an array, found the type {header.kind}")
    _refuse_rank(cursor, header.size)
    return tuple(_size(cursor) for _ in range(header.size))


def _refuse_rank(cursor: MsgpackCursor, rank: int) -> None:
    if rank > MAX_RANK:
        raise FormatError(
            f"{cursor.where}, byte {cursor.at:,}: {rank:,} dimensions are too many; at most {MAX_RANK} are read"
        )


def _size(cursor: MsgpackCursor) -> int:
    found = cursor.header().value
    if type(found) is not int or found < 0:
        raise cursor.corrupt("expected a dimension of an array, a number from 0")
    return found


def _dtype(cursor: MsgpackCursor) -> str:
    header = cursor.header()
    if header.kind not in ("str", "bin") or header.size > _MAX_DTYPE_BYTES:
        raise cursor.corrupt(
            f"expected the name of a dtype, found the type {header.kind} of {header.size:,} bytes"
        )
    name = cursor.text(header.size)
    if name not in STORED_DTYPES:
        raise FormatError(
            f"{cursor.where}, byte {cursor.at:,}: the dtype {name!r} is not supported; supported are {', '.join(STORED_DTYPES)}; leave "
            "that leaf out in the program that saves the checkpoint"
        )
    return name


def _checked(
    cursor: MsgpackCursor, dtype: str, shape: tuple[int, ...], parts: tuple[tuple[int, int], ...]
) -> ArrayBytes:
    array = ArrayBytes(dtype, shape, tuple(part for part in parts if part[1]))
    found = sum(nbytes for _, nbytes in parts)
    if array.nbytes != found or found > MAX_TENSOR_BYTES:
        raise cursor.corrupt(
            f"an array of {dtype} and shape {list(shape)} should have {array.nbytes:,} bytes, but has {found:,}"
        )
    return array


def read_chunked(cursor: MsgpackCursor, entries: int) -> ArrayBytes:
    """The array of a map whose first key was ``CHUNKED``, from there on. Raises CorruptError, FormatError."""
    if entries != 3 or cursor.header().value is not True:
        raise cursor.corrupt(
            f"a map with the key {CHUNKED!r} should be an array in pieces, but is not"
        )
    shape, chunks = _shape_and_chunks(cursor)
    dtypes = {chunk.dtype for chunk in chunks}
    if len(dtypes) > 1:
        raise cursor.corrupt(
            f"the pieces of an array should have one dtype, but have {', '.join(sorted(dtypes))}"
        )
    return _checked(cursor, dtypes.pop(), shape, tuple(p for chunk in chunks for p in chunk.parts))


def _shape_and_chunks(cursor: MsgpackCursor) -> tuple[tuple[int, ...], tuple[ArrayBytes, ...]]:
    """The two other entries of the map, in any order."""
    shape: tuple[int, ...] | None = None
    chunks: tuple[ArrayBytes, ...] | None = None
    for _ in range(2):
        name = _key(cursor)
        if name == "shape" and shape is None:
            shape = _numbered_shape(cursor)
        elif name == "chunks" and chunks is None:
            chunks = _chunks(cursor)
        else:
            break
    if shape is None or not chunks:
        raise cursor.corrupt("an array in pieces should have a shape and chunks, but has not")
    return shape, chunks


def _key(cursor: MsgpackCursor) -> str:
    header = cursor.header()
    if header.kind != "str" or header.size > _MAX_DTYPE_BYTES:
        raise cursor.corrupt(f"expected a key of an array in pieces, found the type {header.kind}")
    return cursor.text(header.size)


def _numbered(cursor: MsgpackCursor) -> int:
    """The number of entries of the map here, whose keys are 0, 1, … as text."""
    header = cursor.header()
    if header.kind != "map":
        raise cursor.corrupt(
            f"expected the pieces of an array by number, found the type {header.kind}"
        )
    return header.size


def _check_number(cursor: MsgpackCursor, number: int) -> None:
    if (found := _key(cursor)) != str(number):
        raise cursor.corrupt(f"expected the key '{number}', found {found!r}")


def _numbered_shape(cursor: MsgpackCursor) -> tuple[int, ...]:
    rank = _numbered(cursor)
    _refuse_rank(cursor, rank)
    sizes = []
    for number in range(rank):
        _check_number(cursor, number)
        sizes.append(_size(cursor))
    return tuple(sizes)


def _chunks(cursor: MsgpackCursor) -> tuple[ArrayBytes, ...]:
    count = _numbered(cursor)
    if count > MAX_ARRAY_PIECES:
        raise FormatError(
            f"{cursor.where}, byte {cursor.at:,}: an array in {count:,} pieces is not read; expected at most {MAX_ARRAY_PIECES:,}"
        )
    chunks = []
    for number in range(count):
        _check_number(cursor, number)
        header = cursor.header()
        found = read_extension(cursor, header) if header.kind == "ext" else None
        if not isinstance(found, ArrayBytes):
            raise cursor.corrupt("expected a piece of an array")
        chunks.append(found)
    return tuple(chunks)
