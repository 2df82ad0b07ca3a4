"""Writes archives that torch loads: those of tensors, and their parts around elements; and the pickles in them.

They are the zip archives of ``torch.save``, whose records ``formats.torch.archive`` finds.

::

    archive/data.pkl    the pickle
    archive/byteorder   "little"
    archive/version     "3\\n"
    archive/data/0      the elements of a tensor, at a multiple of 64 in the archive

The CRC-32 of the elements is not known before they are stored, so that it follows them (flag 8, as torch itself writes it) and is in
the central directory. The rest of an archive depends only on its pickle and the number of bytes of its elements.
(PKWARE's APPNOTE.TXT, 4.3; ``caffe2/serialize/inline_container.cc``)

Pickles are written in protocol 2, the newest that torch's own restricted unpickler reads (``torch/_weights_only_unpickler.py``), of objects
whose classes need not be there. A name or a text that was written once is taken from the memo after that.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from operator import mul
from typing import Any

from msgspec import Struct

from reshard.formats.torch.archive import (
    CENTRAL,
    CENTRAL_MAGIC,
    DESCRIPTOR,
    DESCRIPTOR64,
    DESCRIPTOR_MAGIC,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    EXTRA,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    LOCATOR_MAGIC,
    SIZES_FOLLOW,
    UNSET,
    ZIP64,
)
from reshard.formats.torch.saved_values import REBUILD_V2, REBUILD_V3, STORAGE_DTYPES, UNTYPED
from reshard.geometry.dtypes import storage_bytes

_HEAD, _STOP = b"\x80\x02", b"."
_BATCH = 1000
"""Items of a container that are added at once, as Python's own pickles have them."""

_LEAST_INT32, _MOST_INT32 = -(1 << 31), (1 << 31) - 1


class Global(Struct, frozen=True):
    """A class or a function by its name."""

    module: str
    name: str


class Call(Struct, frozen=True):
    """The result of a function call."""

    function: Global
    arguments: tuple[Any, ...] = ()


class New(Struct, frozen=True):
    """An object of a class; ``state`` is given to it unless it is None."""

    of: Global
    state: Any = None


class Reference(Struct, frozen=True):
    """A reference to an object outside of the pickle."""

    to: tuple[Any, ...]


class Pairs(Struct, frozen=True):
    """A dict by its keys and values, which need no hash and may be made one by one."""

    pairs: Iterable[tuple[Any, Any]]


def encode_pickle(value: Any) -> bytes:
    """The pickle of a record of this module, of a plain value, or of tuples, lists and dicts of them.

    TypeError for any other value.
    """
    encoder = _Encoder()
    encoder.add(value)
    return _HEAD + bytes(encoder.code) + _STOP


class _Encoder:
    """The code of a pickle that is being made."""

    def __init__(self) -> None:
        self.code = bytearray()
        self._memo: dict[str | Global, int] = {}

    def add(self, value: Any) -> None:
        if value is None or value is True or value is False:
            self.code += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, str | Global):
            self._remembered(value)
        elif type(value) is int:
            self.code += _integer(value)
        elif type(value) is float:
            self.code += b"G" + struct.pack(">d", value)
        elif type(value) is complex:
            self.add(Call(Global("__builtin__", "complex"), (value.real, value.imag)))
        elif isinstance(value, tuple | list | dict | Pairs):
            self._container(value)
        else:
            self._object(value)

    def _remembered(self, value: str | Global) -> None:
        number = self._memo.get(value)
        if number is not None:
            self.code += _numbered(b"h", b"j", number)
            return
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            self.code += b"X" + struct.pack("<I", len(data)) + data
        else:
            self.code += f"c{value.module}\n{value.name}\n".encode()
        number = self._memo[value] = len(self._memo)
        self.code += _numbered(b"q", b"r", number)

    def _container(self, value: Any) -> None:
        if isinstance(value, tuple):
            if not value:
                self.code += b")"
                return
            self.code += b"("
            self._all(value)
            self.code += b"t"
        elif isinstance(value, list):
            self.code += b"]"
            self._batches(((item,) for item in value), b"e")
        else:
            pairs = value.items() if isinstance(value, dict) else value.pairs
            self.code += b"}"
            self._batches(pairs, b"u")

    def _batches(self, items: Iterable[tuple[Any, ...]], opcode: bytes) -> None:
        """The items of a container, a batch at a time, so that no reader needs a large stack."""
        remaining = iter(items)
        while batch := list(islice(remaining, _BATCH)):
            self.code += b"("
            for item in batch:
                self._all(item)
            self.code += opcode

    def _object(self, value: Any) -> None:
        if isinstance(value, Call):
            self._all((value.function, value.arguments))
            self.code += b"R"
        elif isinstance(value, New):
            self._all((value.of, ()))
            self.code += b"\x81"
            if value.state is not None:
                self.add(value.state)
                self.code += b"b"
        elif isinstance(value, Reference):
            self.add(value.to)
            self.code += b"Q"
        else:
            raise TypeError(f"no value of a pickle that is written: {type(value)}")

    def _all(self, values: Sequence[Any]) -> None:
        for value in values:
            self.add(value)


def _numbered(short: bytes, long: bytes, number: int) -> bytes:
    return short + bytes([number]) if number < 256 else long + struct.pack("<I", number)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if _LEAST_INT32 <= value <= _MOST_INT32:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


_STORAGES = {dtype: storage for storage, dtype in STORAGE_DTYPES.items()}
_NO_HOOKS = Call(Global("collections", "OrderedDict"))


@lru_cache(maxsize=1024)  # layers of a model are alike
def tensor_pickle(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The pickle of a row-major tensor, whose elements are the record ``data/0``.

    A dtype without a typed storage, such as float8, has an untyped one, and is named beside it.
    """
    is_typed, count = dtype in _STORAGES, math.prod(shape)
    if is_typed:
        of = Global("torch", _STORAGES[dtype])
    else:
        of, count = Global("torch.storage", UNTYPED), count * storage_bytes(dtype)
    storage = Reference(("storage", of, "0", "cpu", count))
    arguments: tuple[Any, ...] = (storage, 0, shape, _row_major(shape), False, _NO_HOOKS)
    if not is_typed:
        arguments = (*arguments, Global("torch", dtype))
    rebuild = REBUILD_V2 if is_typed else REBUILD_V3
    return encode_pickle(Call(Global("torch._utils", rebuild), arguments))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements."""
    steps = itertools.accumulate(reversed([max(1, size) for size in shape[1:]]), mul, initial=1)
    return tuple(reversed(list(steps))) if shape else ()


ALIGNMENT = 64
"""Of the elements in an archive, as in torch's."""

_DATE = 0x0021
"""1980-01-01, the first day that the format knows."""

_PLAIN, _WITH_ZIP64 = 20, 45
"""Versions of the format that a record needs."""

_PADDING = 0x4246
"""The extra field that torch pads with."""


class _Record(Struct, frozen=True):
    """A record as the directory lists it; ``header`` is the offset of its local header."""

    name: bytes
    header: int
    nbytes: int
    crc: int
    flags: int = 0

    @property
    def is_large(self) -> bool:
        return self.nbytes >= UNSET

    def local(self, extra: bytes = b"") -> bytes:
        known = (0, 0, 0) if self.flags else (self.crc, self.nbytes, self.nbytes)
        fields = (self._version, self.flags, 0, 0, _DATE, *known, len(self.name), len(extra))
        return LOCAL.pack(LOCAL_MAGIC, *fields) + self.name + extra

    def descriptor(self) -> bytes:
        form = DESCRIPTOR64 if self.is_large else DESCRIPTOR
        return form.pack(DESCRIPTOR_MAGIC, self.crc, self.nbytes, self.nbytes)

    def central(self) -> bytes:
        extra, size = b"", self.nbytes
        if self.is_large:
            extra, size = _zip64(self.nbytes), UNSET
        version = self._version
        fields = (version, version, self.flags, 0, 0, _DATE, self.crc, size, size, len(self.name), len(extra))  # fmt: skip
        return CENTRAL.pack(CENTRAL_MAGIC, *fields, 0, 0, 0, 0, self.header) + self.name + extra

    @property
    def _version(self) -> int:
        return _WITH_ZIP64 if self.is_large else _PLAIN


def _zip64(nbytes: int) -> bytes:
    """The extra field that has both sizes of a record."""
    return EXTRA.pack(ZIP64, 16) + struct.pack("<2Q", nbytes, nbytes)


def archive_of(pickle: bytes) -> bytes:
    """The archive of an object without tensors."""
    head, records = _beginning(pickle)
    return head + _directory(records, len(head))


def archive_head(pickle: bytes, nbytes: int) -> bytes:
    """The bytes before the ``nbytes`` of elements of a tensor's archive."""
    head, _ = _beginning(pickle)
    record = _elements(len(head), nbytes)
    extra = _zip64(0) if record.is_large else b""
    begin = len(head) + len(record.local(extra)) + EXTRA.size
    padding = elements_start(pickle, nbytes) - begin
    extra += EXTRA.pack(_PADDING, padding) + b"Z" * padding
    return head + record.local(extra)


def elements_start(pickle: bytes, nbytes: int) -> int:
    """The length of the head: the offset of the elements in the archive."""
    record = _elements(0, nbytes)
    begin = _BESIDES_PICKLE + len(pickle) + LOCAL.size + len(record.name) + EXTRA.size
    if record.is_large:
        begin += len(_zip64(0))
    return begin + -begin % ALIGNMENT


def archive_tail(pickle: bytes, nbytes: int, crc: int) -> bytes:
    """The bytes behind the elements, whose CRC-32 is ``crc``."""
    head, records = _beginning(pickle)
    record = _elements(len(head), nbytes, crc)
    descriptor = record.descriptor()
    end = elements_start(pickle, nbytes) + nbytes + len(descriptor)
    return descriptor + _directory([*records, record], end)


def _beginning(pickle: bytes) -> tuple[bytes, list[_Record]]:
    """The records that are known before the elements."""
    head, records = b"", []
    for name, data in {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"}.items():
        record = _Record(f"archive/{name}".encode(), len(head), len(data), zlib.crc32(data))
        records.append(record)
        head += record.local() + data
    return head, records


_BESIDES_PICKLE = len(_beginning(b"")[0])


def _elements(header: int, nbytes: int, crc: int = 0) -> _Record:
    return _Record(b"archive/data/0", header, nbytes, crc, SIZES_FOLLOW)


def _directory(records: list[_Record], at: int) -> bytes:
    """The central directory and the end records, at an offset of the archive; ZIP64's are always there, as in torch's."""
    central = b"".join(record.central() for record in records)
    count, end = len(records), at + len(central)
    of64 = END64.pack(END64_MAGIC, 44, _WITH_ZIP64, _WITH_ZIP64, 0, 0, count, count, len(central), at)  # fmt: skip
    locator = LOCATOR.pack(LOCATOR_MAGIC, 0, end, 1)
    short = END.pack(END_MAGIC, 0, 0, count, count, len(central), min(at, UNSET), 0)
    return central + of64 + locator + short
