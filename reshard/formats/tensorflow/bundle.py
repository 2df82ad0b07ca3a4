"""The messages of an index: the header, and an entry for each tensor and each slice.

(``tensorflow/core/protobuf/tensor_bundle.proto``, ``core/framework/{types,tensor_shape,tensor_slice}.proto``)
"""

from __future__ import annotations

import math

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.limits import MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.tensorflow.slice_keys import WHOLE
from reshard.formats.tensorflow.table import masked, unmasked
from reshard.formats.tensorflow.wire import (
    WireError,
    bytes_field,
    fields,
    fixed32_field,
    message,
    number_field,
    signed,
    varint_bytes,
    whole,
)
from reshard.geometry.grid import Box

DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4", 31: "int2",
}  # fmt: skip
"""Element types by their number. Types below 8 bits are stored one element a byte, as here."""

NUMBERS = {name: number for number, name in DTYPES.items()}
"""The number of each element type."""

STRING = 7

OTHER_DTYPES = {
    STRING: "string", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 20: "resource", 21: "variant",
    30: "uint4", 32: "uint2",
}  # fmt: skip
"""Types of tensors that a checkpoint may have, but that are no arrays of numbers here."""

MOST_DATA_FILES = 99_999
"""As their names, which have five digits, allow."""

Extents = tuple[tuple[int, int], ...]
"""Of each dimension of a slice its start and its length; ``WHOLE`` is the length of all."""


class Header(Struct, frozen=True):
    """The header of an index: the number of data files."""

    data_files: int


class BundleEntry(Struct, frozen=True):
    """A tensor or a slice.

    Attributes:
        dtype: its number; see ``DTYPES``.
        data_file: the number of the file that holds it.
        crc32c: of its bytes as they are stored; of strings, of their lengths and their bytes.
        slices: of a tensor that is stored in slices, which have entries of their own.
    """

    dtype: int
    shape: tuple[int, ...]
    data_file: int = 0
    offset: int = 0
    nbytes: int = 0
    crc32c: int = 0
    slices: tuple[Extents, ...] = ()


def read_header(value: bytes, where: str) -> Header:
    """The header. Raises CorruptError for a message that is none, FormatError for an unsupported feature."""
    data_files = endianness = least_version = 0
    try:
        for number, found in fields(value):
            if number == 1:
                data_files = whole(found)
            elif number == 2:
                endianness = whole(found)
            elif number == 3:
                least_version = max(
                    [whole(n) for k, n in fields(message(found)) if k == 2], default=0
                )
    except WireError as error:
        raise _damaged(where, "its header", error) from None
    if endianness:
        raise FormatError(
            f"{where} was written on a big-endian machine, which is not supported; save it again with TensorFlow on another"
        )
    if least_version > 1:
        raise FormatError(
            f"{where} asks for version {least_version} of its format, and 1 is the newest that is known"
        )
    if not 0 <= data_files <= MOST_DATA_FILES:
        raise CorruptError(f"{where} is damaged: it counts {data_files} data files")
    return Header(data_files)


def read_entry(value: bytes, key: str, where: str) -> BundleEntry:
    """The entry of a tensor or a slice. Raises CorruptError for a message that is none."""
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    slices: list[Extents] = []
    try:
        for number, found in fields(value):
            if number == 2:
                shape = _shape(message(found))
            elif number == 7:
                slices.append(_extents(message(found)))
            elif number in numbers:
                numbers[number] = whole(found)
    except WireError as error:
        raise _damaged(where, repr(key), error) from None
    if len(shape) > MAX_RANK or any(n < 0 for n in shape):
        raise CorruptError(
            f"{where}: {key!r} has the shape {list(shape)[: MAX_RANK + 1]}; expected at most {MAX_RANK} sizes of at least 0"
        )
    if math.prod(shape) * 16 > MAX_TENSOR_BYTES or max(numbers.values()) > MAX_TENSOR_BYTES:
        raise CorruptError(
            f"{where}: {key!r} of shape {list(shape)} is larger than any tensor that is read"
        )
    dtype, data_file, offset, nbytes, crc = numbers.values()
    return BundleEntry(
        dtype, shape, data_file, offset, nbytes, unmasked(crc & 0xFFFFFFFF), tuple(slices)
    )


def header_bytes(data_files: int) -> bytes:
    """The header of a little-endian checkpoint of version 1."""
    return number_field(1, data_files) + bytes_field(3, number_field(1, 1))


def entry_bytes(entry: BundleEntry) -> bytes:
    """The message of a tensor or a slice; ``read_entry`` reads it."""
    shape = b"".join(bytes_field(2, number_field(1, size)) for size in entry.shape)
    numbers = (entry.data_file, entry.offset, entry.nbytes)
    return b"".join([
        number_field(1, entry.dtype),
        bytes_field(2, shape),
        *(number_field(3 + place, number) for place, number in enumerate(numbers)),
        fixed32_field(6, masked(entry.crc32c)) if not entry.slices else b"",
        *(bytes_field(7, _extents_bytes(extents)) for extents in entry.slices),
    ])  # fmt: skip


def _extents_bytes(extents: Extents) -> bytes:
    # A length is one of several fields that may be there, so that one of 0 is written too.
    return b"".join(
        bytes_field(1, number_field(1, start) + b"\x10" + varint_bytes(length))
        for start, length in extents
    )


def box_of(extents: Extents, shape: tuple[int, ...]) -> Box:
    """The box of a slice of a tensor; out of bounds where the slice is."""
    whole_or_not = zip(extents, shape, strict=True)
    stops = [size if length == WHOLE else start + length for (start, length), size in whole_or_not]
    return Box(tuple(start for start, _ in extents), tuple(stops))


def _shape(value: bytes) -> tuple[int, ...]:
    sizes = []
    for number, found in fields(value):
        if number == 2:
            sizes.append(sum(signed(n) for k, n in fields(message(found)) if k == 1))
        elif number == 3 and found:
            raise WireError("its rank is not known")
    return tuple(sizes)


def _extents(value: bytes) -> Extents:
    found = []
    for number, extent in fields(value):
        if number == 1:
            start, length = 0, WHOLE
            for key, count in fields(message(extent)):
                start = signed(count) if key == 1 else start
                length = signed(count) if key == 2 else length
            found.append((start, length))
    return tuple(found)


def _damaged(where: str, what: str, error: WireError) -> CorruptError:
    return CorruptError(f"{where} is damaged: {what}: {error}; restore the file from a copy")
