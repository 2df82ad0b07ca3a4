"""Strings as TensorFlow stores them: the length of each, a checksum of the lengths, and their bytes.

The lengths are varints; their checksum is the masked CRC32C of each as four bytes, little-endian, and takes four bytes itself. The entry's
checksum is of those four bytes a length, the stored checksum, and the bytes. (``tensorflow/core/util/tensor_bundle/tensor_bundle.cc``)
"""

from __future__ import annotations

from contextlib import closing

from reshard.checksums.crc import CRC32C
from reshard.errors import CorruptError
from reshard.formats.tensorflow.bundle import Entry
from reshard.formats.tensorflow.table import masked
from reshard.formats.tensorflow.wire import WireError, varint, varint_bytes
from reshard.storage.location import open_file

MOST_TEXT_BYTES = 1 << 20
"""A longer string is no text that a leaf holds."""

_CHECKSUM_BYTES = 4


def scalar_string(entry: Entry, path: str, version: str, what: str) -> bytes:
    """The bytes of a string that is a tensor without dimensions.

    Args:
        what: the tensor, as messages name it.

    Raises CorruptError where the data is no such string or does not have its checksum.
    """
    with closing(open_file(path, version)) as file:
        stored = file.read(entry.offset, entry.nbytes)
    try:
        length, at = varint(stored, 0)
    except WireError as error:
        raise _damaged(path, what, str(error)) from None
    text = stored[at + _CHECKSUM_BYTES :]
    if len(text) != length:
        raise _damaged(path, what, f"it should have {length} bytes, and has {len(text)}")
    lengths = length.to_bytes(4, "little")
    checksum = masked(CRC32C.of(lengths)).to_bytes(_CHECKSUM_BYTES, "little")
    if stored[at : at + _CHECKSUM_BYTES] != checksum:
        raise _damaged(path, what, "its length does not have its checksum")
    if CRC32C.of(lengths + checksum + text) != entry.crc32c:
        raise _damaged(path, what, "it does not have its checksum")
    return text


def stored_string(text: bytes) -> tuple[bytes, int]:
    """A string without dimensions as it is stored, and the CRC32C of its entry."""
    lengths = len(text).to_bytes(4, "little")
    checksum = masked(CRC32C.of(lengths)).to_bytes(_CHECKSUM_BYTES, "little")
    return varint_bytes(len(text)) + checksum + text, CRC32C.of(lengths + checksum + text)


def _damaged(path: str, what: str, how: str) -> CorruptError:
    return CorruptError(
        f"{path}: the string {what} is damaged: {how}; restore the file from a copy"
    )
