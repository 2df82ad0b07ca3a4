"""The index of a checkpoint of TensorFlow: an entry for each tensor, and for each slice of one.

The keys under which slices of a tensor are stored: bytes that sort as their parts do.

::

    00                    whole number 0
    name 00 01            text; within it 00 is 00 ff and ff is ff 00
    rank                  whole number: the number of its bytes, then these, the highest first
    start length …        of each dimension, signed; a length of -1 is the whole dimension

A signed number takes k bytes for 7 k bits: big-endian two's complement with the first k bits inverted.
(``tensorflow/core/lib/strings/ordered_code.cc``, ``core/util/saved_tensor_slice_util.cc``)

The messages of an index: the header, and an entry for each tensor and each slice.

(``tensorflow/core/protobuf/tensor_bundle.proto``, ``core/framework/{types,tensor_shape,tensor_slice}.proto``)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, MissingError
from reshard.formats.limits import MAX_LEAVES, MAX_NAME_CHARACTERS, MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.tensorflow.files import index_of
from reshard.formats.tensorflow.table import (
    WireError,
    bytes_field,
    entries,
    fields,
    fixed32_field,
    masked,
    message,
    number_field,
    signed,
    unmasked,
    varint_bytes,
    whole,
)
from reshard.geometry.grid import Box
from reshard.storage.base import FileStatus
from reshard.storage.location import Location

WHOLE = -1
"""The length of a slice that has a whole dimension."""


_ESCAPED = {0x00: b"\0\xff", 0xFF: b"\xff\0"}


def slice_key(name: bytes, extents: Sequence[tuple[int, int]]) -> bytes:
    """The key of a slice of a tensor: of each dimension start and length, ``WHOLE`` where it is stored so.

    >>> slice_key(b"a", [(0, 3), (64, -1)]).hex(" ")
    '00 61 00 01 01 02 80 83 c0 40 7f'
    """
    text = name
    if 0x00 in name or 0xFF in name:
        text = b"".join(_ESCAPED.get(octet, bytes([octet])) for octet in name)
    numbers = b"".join(sorting_bytes(number) for extent in extents for number in extent)
    return b"\0" + text + b"\0\1" + _whole(len(extents)) + numbers


def _whole(number: int) -> bytes:
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


@lru_cache(maxsize=4096)  # slices of many tensors begin at the same numbers
def sorting_bytes(number: int) -> bytes:
    """A whole number so that smaller ones sort first.

    >>> sorting_bytes(8192).hex(" ")
    'e0 20 00'
    """
    nbytes = (number if number >= 0 else ~number).bit_length() // 7 + 1
    ones = ((1 << nbytes) - 1) << (7 * nbytes)
    return ((number & ((1 << 8 * nbytes) - 1)) ^ ones).to_bytes(nbytes, "big")


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


_SLICE = b"\0"
"""Begins the key of a slice; no tensor's name begins with it."""


class StoredSlice(Struct, frozen=True):
    """A slice of a tensor, and the entry of its own."""

    extents: Extents
    entry: BundleEntry


class IndexEntry(Struct, frozen=True):
    """A tensor as the index has it.

    Attributes:
        slices: all that it is stored in; none for a tensor that is stored whole.
    """

    key: str
    entry: BundleEntry
    slices: tuple[StoredSlice, ...] = ()


class BundleIndex(Struct, frozen=True):
    """The content of the index of a checkpoint.

    Attributes:
        nbytes: of the file.
    """

    header: Header
    tensors: tuple[IndexEntry, ...]
    nbytes: int


def read_index(root: Location) -> BundleIndex:
    """The index of the checkpoint that a prefix names.

    Raises MissingError where it is not there, CorruptError where it is damaged or says the impossible, FormatError for what is not
    supported.
    """
    where = str(index_of(root))
    header: Header | None = None
    tensors: dict[bytes, BundleEntry] = {}
    slices: dict[bytes, BundleEntry] = {}
    file = _file(root)
    for key, value in _entries(root, file):
        if not key:
            header = read_header(value, where)
        elif key.startswith(_SLICE):
            slices[key] = read_entry(value, "the entry of a slice", where)
        else:
            tensors[key] = read_entry(value, _text(key, where), where)
        if len(tensors) + len(slices) > MAX_LEAVES:
            raise FormatError(
                f"{where} has more than {MAX_LEAVES:,} tensors and slices, the most that are read"
            )
    if header is None:
        raise CorruptError(f"{where} is damaged: it has no header; restore the file from a copy")
    found = tuple(_with_slices(key, entry, slices, where) for key, entry in tensors.items())
    if slices:
        raise CorruptError(
            f"{where} is damaged: it has {len(slices)} slices of which no tensor tells; restore the file from a copy"
        )
    return BundleIndex(header, found, file.nbytes)


class EntrySizes(Struct, frozen=True):
    """The numbers and the sizes of the entries of an index.

    Attributes:
        tensors: the number of tensors, the header counted.
        slices: the number of slices.
        key_bytes, value_bytes: of the slices' entries together.
    """

    tensors: int
    slices: int
    key_bytes: int
    value_bytes: int


def entry_sizes(root: Location) -> EntrySizes:
    """The numbers of tensors and slices, and the sizes of their entries; none is parsed."""
    tensors = slices = key_bytes = value_bytes = 0
    for key, value in _entries(root, _file(root)):
        if key.startswith(_SLICE):
            slices += 1
            key_bytes += len(key)
            value_bytes += len(value)
        else:
            tensors += 1
    return EntrySizes(tensors, slices, key_bytes, value_bytes)


def _file(root: Location) -> FileStatus:
    index = index_of(root)
    found = index.status()
    if found is None or found.kind != "file":
        raise MissingError(
            f"{index} is not there; without it the data files of {root} cannot be read"
        )
    return found


def _entries(root: Location, found: FileStatus) -> Iterator[tuple[bytes, bytes]]:
    index = index_of(root)
    with closing(index.open(found.version)) as file:
        yield from entries(file, found.nbytes, str(index))


def _with_slices(
    key: bytes, entry: BundleEntry, slices: dict[bytes, BundleEntry], where: str
) -> IndexEntry:
    """The tensor with its slices, which are taken out of ``slices``."""
    name = _text(key, where)
    found = []
    for extents in entry.slices:
        own = slices.pop(slice_key(key, extents), None)
        if own is None:
            raise CorruptError(
                f"{where} is damaged: it has no entry for the slice {_shown(extents)} of {name!r}, or two; restore the file from a copy"
            )
        if own.dtype != entry.dtype or len(extents) != len(entry.shape):
            raise CorruptError(
                f"{where} is damaged: the slice {_shown(extents)} of {name!r} is not like the tensor; restore the file from a copy"
            )
        found.append(StoredSlice(extents, own))
    return IndexEntry(name, entry, tuple(found))


def _shown(extents: Extents) -> str:
    """The text by which SaveSliceInfo shows a slice: start and length of each dimension."""
    return ":".join("-" if length < 0 else f"{start},{length}" for start, length in extents)


def _text(key: bytes, where: str) -> str:
    try:
        name = key.decode()
    except UnicodeDecodeError:
        raise FormatError(
            f"{where}: the name {key[:80]!r} is not UTF-8, which no other format can hold"
        ) from None
    if len(name) > MAX_NAME_CHARACTERS:
        raise FormatError(
            f"{where}: the name {name[:80]!r}… has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are read"
        )
    return name
