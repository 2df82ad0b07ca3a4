"""The types that flax.serialization and Orbax add to msgpack: numpy arrays, numpy scalars and complex numbers.

An array is an ext whose bytes are msgpack again: ``(shape, dtype name, row-major bytes)``. Of an array above 1 GiB both
write a map instead, with flat pieces of it::

    {"__msgpack_chunked_array__": True, "shape": {"0": rows, "1": columns}, "chunks": {"0": piece, "1": piece, ...}}

``orbax/checkpoint/msgpack_utils.py`` of Orbax 0.12 and ``flax/serialization.py`` read and write them. Nothing is unpickled:
dtypes of objects are refused, as by both.
"""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.errors import FormatError
from reshard.formats.limits import MAX_ARRAY_PIECES, MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.msgpack.cursor import Header, MsgpackCursor
from reshard.geometry.dtypes import STORED_DTYPES, storage_bytes

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
