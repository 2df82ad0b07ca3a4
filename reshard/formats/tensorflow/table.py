"""The sorted table of keys and values that TensorFlow and LevelDB write, read from its beginning to its end.

::

    blocks        entries, then offsets of some of them, then their number; behind each block its kind and checksum
    index block   for each block a key and its handle: offset and size, two varints
    footer        48 bytes: handles of an unused block and of the index block, zeros, a magic number

An entry is three varints (bytes that its key shares with the one before, further bytes of the key, bytes of the value), the rest of the
key, and the value. (https://github.com/google/leveldb/blob/main/doc/table_format.md)
"""

from __future__ import annotations

from collections.abc import Iterator

from reshard.checksums.crc import CRC32C
from reshard.errors import CorruptError, FormatError
from reshard.formats.tensorflow.wire import WireError, varint
from reshard.storage.base import OpenFile

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
