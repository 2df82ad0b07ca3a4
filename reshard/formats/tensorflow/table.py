"""The sorted table of keys and values that TensorFlow and LevelDB write, read from its beginning to its end.

::

    blocks        entries, then offsets of some of them, then their number; behind each block its kind and checksum
    index block   for each block a key and its handle: offset and size, two varints
    footer        48 bytes: handles of an unused block and of the index block, zeros, a magic number

An entry is three varints (bytes that its key shares with the one before, further bytes of the key, bytes of the value), the rest of the
key, and the value. (https://github.com/google/leveldb/blob/main/doc/table_format.md)

The wire format of protocol buffers: a message as its fields, by number.

A field begins with a varint: its number times eight, plus the form of its value: 0 a varint, 1 eight bytes, 2 a length and so many
bytes, 5 four bytes. (https://protobuf.dev/programming-guides/encoding)

Writes the sorted table that ``formats.tensorflow.table`` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reshard.checksums.crc import CRC32C
from reshard.errors import CorruptError, FormatError
from reshard.storage.base import OpenFile

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_MOST_VARINT_BYTES = 10

Value = int | bytes


class WireError(ValueError):
    """A message that is damaged; the text says how."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, each with its number: bytes where it has a length, else a whole number of at least 0.

    Raises WireError where the message is no such thing.
    """
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        value: Value
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            nbytes, at = varint(message, at)
        elif kind in (FIXED32, FIXED64):
            nbytes = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"a field is stored in the unknown way {kind}")
        if nbytes > len(message) - at:
            raise WireError("a field goes beyond its end")
        value = message[at : at + nbytes]
        yield number, value if kind == BYTES else int.from_bytes(value, "little")
        at += nbytes


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number that begins at an offset, seven bits a byte and the lowest first, and the offset behind it."""
    if (
        at < len(data) and data[at] < 0x80
    ):  # most are below 128, and an index of a million tensors has ten million
        return data[at], at + 1
    value = 0
    for place in range(min(_MOST_VARINT_BYTES, len(data) - at)):
        octet = data[at + place]
        value |= (octet & 0x7F) << (7 * place)
        if octet < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise WireError("a number does not end, or has more than 64 bits")


def signed(value: Value) -> int:
    """A varint as an int64."""
    number = whole(value)
    return number - (1 << 64) if number >> 63 else number


def whole(value: Value) -> int:
    """The value of a field that must be a number."""
    if not isinstance(value, int):
        raise WireError("bytes stand where a number is expected")
    return value


def message(value: Value) -> bytes:
    """The value of a field that must have a length."""
    if not isinstance(value, bytes):
        raise WireError("a number stands where bytes are expected")
    return value


def varint_bytes(number: int) -> bytes:
    """A number of at least 0 as a varint; a negative one as the int64 that it is."""
    number &= (1 << 64) - 1
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def number_field(number: int, value: int) -> bytes:
    """A field with a varint; nothing for 0, the meaning of a missing field."""
    return varint_bytes(number << 3 | VARINT) + varint_bytes(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """A field with four bytes."""
    return varint_bytes(number << 3 | FIXED32) + value.to_bytes(4, "little")


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with a length: bytes, text, or a message."""
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(value)) + value


BLOCK_BYTES = 256 << 10
"""A block that is this long ends, as in TensorFlow."""

_RESTART_ENTRIES = 16
"""So many entries share beginnings of keys; the next one has its whole key."""


def table_bytes(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table of keys and values, which are given in the order of the keys."""
    table, handles = bytearray(), list[tuple[bytes, bytes]]()
    block = _Block(_RESTART_ENTRIES)
    for key, value in entries:
        block.add(key, value)
        if block.nbytes >= BLOCK_BYTES:
            handles.append((key, _append(table, block.finished())))
            block = _Block(_RESTART_ENTRIES)
    if block.last or not handles:
        handles.append((block.last, _append(table, block.finished())))
    unused = _append(table, _Block(1).finished())
    index = _Block(1)
    for last, handle in handles:
        index.add(last, handle)
    of_index = _append(table, index.finished())
    return bytes(table) + (unused + of_index).ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


class _Block:
    """Entries; each has only the part of its key that the one before does not have."""

    def __init__(self, restart: int) -> None:
        self.last = b""
        self._restart = restart
        self._content = bytearray()
        self._restarts = [0]
        self._count = 0

    @property
    def nbytes(self) -> int:
        return len(self._content)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._count == self._restart:
            self._restarts.append(len(self._content))
            self._count = 0
        elif self._count:
            shared = _shared(self.last, key)
        sizes = (shared, len(key) - shared, len(value))
        self._content += b"".join(map(varint_bytes, sizes)) + key[shared:] + value
        self.last = key
        self._count += 1

    def finished(self) -> bytes:
        offsets = (*self._restarts, len(self._restarts))
        return bytes(self._content) + b"".join(n.to_bytes(4, "little") for n in offsets)


def _shared(a: bytes, b: bytes) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((place for place, (x, y) in pairs if x != y), min(len(a), len(b)))


def _append(table: bytearray, block: bytes) -> bytes:
    """Adds a block; returns its handle."""
    handle = varint_bytes(len(table)) + varint_bytes(len(block))
    stored = block + b"\0"  # not compressed
    table += stored + masked(CRC32C.of(stored)).to_bytes(4, "little")
    return handle


FOOTER_BYTES = 48
MAGIC = bytes.fromhex("57fb808b247547db")

TRAILER_BYTES = 5
"""Kind and checksum of a block."""

MAX_BLOCK_BYTES = 64 << 20
"""TensorFlow begins another block after 256 KiB; one entry with 100,000 slices takes some 2 MB."""

_MASK_DELTA = 0xA282EAD8
_BITS = (1 << 32) - 1


def masked(crc: int) -> int:
    """A CRC32C as these files store it, so that a CRC of data with CRCs in it is no weaker."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _BITS


def unmasked(stored: int) -> int:
    """The CRC32C that ``masked`` was given."""
    turned = (stored - _MASK_DELTA) & _BITS
    return ((turned >> 17) | (turned << 15)) & _BITS


def entries(file: OpenFile, nbytes: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Every key with its value, in the order of the keys.

    Args:
        nbytes: of the whole file.
        where: the file, as messages name it.

    Raises CorruptError for damage, which each block's checksum shows, and FormatError for a compressed block.
    """
    last = b""
    for _, handle in _block(file, _index_handle(file, nbytes, where), nbytes, where):
        for key, value in _block(file, _handle(handle, where), nbytes, where):
            if key <= last and (key or last):
                raise _damaged(where, "its keys are not sorted")
            last = key
            yield key, value


def _index_handle(file: OpenFile, nbytes: int, where: str) -> tuple[int, int]:
    footer = file.read(max(0, nbytes - FOOTER_BYTES), FOOTER_BYTES)
    if len(footer) < FOOTER_BYTES or not footer.endswith(MAGIC):
        raise CorruptError(
            f"{where} does not end as an index of TensorFlow does: it has {nbytes} bytes, of which the last 8 should be "
            f"{MAGIC.hex()}, and are {footer[-8:].hex() or 'missing'}; restore the file from a copy"
        )
    try:
        _, at = varint(footer, 0)
        _, at = varint(footer, at)
    except WireError as error:
        raise _damaged(where, str(error)) from None
    return _handle(footer[at:], where)


def _handle(data: bytes, where: str) -> tuple[int, int]:
    """Offset and size of a block, its kind and checksum not counted."""
    try:
        offset, at = varint(data, 0)
        size, _ = varint(data, at)
    except WireError as error:
        raise _damaged(where, str(error)) from None
    return offset, size


def _block(
    file: OpenFile, handle: tuple[int, int], nbytes: int, where: str
) -> Iterator[tuple[bytes, bytes]]:
    offset, size = handle
    if offset + size + TRAILER_BYTES > nbytes:
        raise _damaged(where, f"a block of {size} bytes at {offset} goes beyond its end")
    if size > MAX_BLOCK_BYTES:
        raise FormatError(
            f"{where} has a block of {size} bytes; at most {MAX_BLOCK_BYTES} are read"
        )
    stored = file.read(offset, size + TRAILER_BYTES)
    if len(stored) < size + TRAILER_BYTES:
        raise _damaged(where, f"it ends within the block at {offset}")
    if masked(CRC32C.of(stored[: size + 1])) != int.from_bytes(stored[size + 1 :], "little"):
        raise _damaged(where, f"the block at {offset} does not have its checksum")
    if stored[size] != 0:
        kind = "with snappy" if stored[size] == 1 else f"in the way {stored[size]}"
        raise FormatError(
            f"{where} has a block that is compressed {kind}, which TensorFlow itself does not write; save the checkpoint again with "
            "TensorFlow"
        )
    yield from _entries_of(stored[:size], offset, where)


def _entries_of(block: bytes, offset: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        raise _damaged(where, f"the block at {offset} is too short for its {restarts} offsets")
    key, at = b"", 0
    while at < end:
        try:
            shared, at = varint(block, at)
            more, at = varint(block, at)
            value_bytes, at = varint(block, at)
        except WireError as error:
            raise _damaged(where, f"in the block at {offset} {error}") from None
        if shared > len(key) or more + value_bytes > end - at:
            raise _damaged(where, f"an entry of the block at {offset} goes beyond its end")
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + value_bytes]
        at += value_bytes


def _damaged(where: str, what: str) -> CorruptError:
    return CorruptError(f"{where} is damaged: {what}; restore the file from a copy")
