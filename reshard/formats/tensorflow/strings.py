"""Strings as TensorFlow stores them: the length of each, a checksum of the lengths, and their bytes.

The lengths are varints; their checksum is the masked CRC32C of each as four bytes, little-endian, and takes four bytes itself. The entry's
checksum is of those four bytes a length, the stored checksum, and the bytes. (``tensorflow/core/util/tensor_bundle/tensor_bundle.cc``)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from reshard.checksums.crc import CRC32C
from reshard.errors import CorruptError
from reshard.formats.contents import Carried, CarriedPart
from reshard.formats.tensorflow.table import masked, varint_bytes
from reshard.storage.location import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHECKSUM_BYTES = 4
"""Of the lengths. Of an empty tensor this is all that is stored, or nothing is."""

STRING_MEMORY = 120
"""Bytes of memory that each string takes while it is read and joined, beside its own."""

HELD = 5
"""The most copies of the bytes of strings that are in memory at once (measured: 4.0, and 5.0 with those of the tensor before)."""

_MOST_LENGTH_BYTES = 5
"""A longer length is one of 4 GiB and more."""


class Strings(Struct, frozen=True):
    """Strings in row-major order: the length of each, and the bytes of all."""

    lengths: NDArray[np.int64]
    data: bytes


def read_strings(carried: Carried, what: str) -> Strings:
    """The strings of a tensor, joined where they are stored in slices.

    Args:
        what: the tensor, as messages name it.

    Raises CorruptError where the data is no such strings or does not have its checksum.
    """
    parts = [_read_part(part, what) for part in carried.parts]
    if len(parts) == 1:
        return parts[0]
    return _joined(carried.shape, carried.parts, parts)


def joined_bytes(carried: Carried) -> int:
    """The bytes of the joined strings as they are stored."""
    return CHECKSUM_BYTES + sum(max(0, p.extent.length - CHECKSUM_BYTES) for p in carried.parts)


def stored_strings(strings: Strings) -> tuple[bytes, int]:
    """Strings as they are stored, and the CRC32C of their entry."""
    lengths = strings.lengths.astype("<u4").tobytes()
    checksum = masked(CRC32C.of(lengths)).to_bytes(CHECKSUM_BYTES, "little")
    varints = b"".join(map(varint_bytes, strings.lengths.tolist()))
    return varints + checksum + strings.data, CRC32C.of(lengths + checksum + strings.data)


def one_string(text: bytes) -> Strings:
    """A string as a tensor without dimensions."""
    return Strings(np.array([len(text)]), text)


def _read_part(part: CarriedPart, what: str) -> Strings:
    extent, count = part.extent, part.box.size
    with closing(open_file(extent.path, extent.version)) as file:
        stored = file.read(extent.offset, extent.length)
    if not stored and not count:
        return Strings(np.zeros(0, np.int64), b"")
    where = f"{extent.path}: the strings of {what} are damaged"
    lengths, at = _lengths(stored, count, where)
    begin = at + CHECKSUM_BYTES
    if len(stored) - begin != int(lengths.sum()):
        raise _damaged(
            where, f"they should have {lengths.sum()} bytes, and have {len(stored) - begin}"
        )
    of_lengths = lengths.astype("<u4").tobytes()
    checksum = masked(CRC32C.of(of_lengths)).to_bytes(CHECKSUM_BYTES, "little")
    if stored[at:begin] != checksum:
        raise _damaged(where, "their lengths do not have their checksum")
    data = stored[begin:]
    if CRC32C.of(data, CRC32C.of(of_lengths + checksum)) != part.crc:
        raise _damaged(where, "they do not have their checksum")
    return Strings(lengths, data)


def _lengths(stored: bytes, count: int, where: str) -> tuple[NDArray[np.int64], int]:
    """The first ``count`` varints, and the offset behind them."""
    octets = np.frombuffer(stored, np.uint8)[: count * _MOST_LENGTH_BYTES]
    ends = np.flatnonzero(octets < 0x80)[:count]
    if len(ends) < count:
        raise _damaged(where, f"expected {count} lengths, found {len(ends)}")
    if not count:
        return np.zeros(0, np.int64), 0
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > _MOST_LENGTH_BYTES:
        raise _damaged(where, "a length has more than 32 bits")
    at = int(ends[-1]) + 1
    places = np.arange(at) - np.repeat(starts, sizes)
    bits = (octets[:at] & 0x7F).astype(np.int64) << (7 * places)
    lengths = np.add.reduceat(bits, starts)
    if lengths.max() >> 32:
        raise _damaged(where, "a length has more than 32 bits")
    return lengths, at


def _joined(
    shape: tuple[int, ...], parts: Sequence[CarriedPart], found: Sequence[Strings]
) -> Strings:
    """The strings of boxes that tile an array, in the array's order."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    places = np.concatenate([numbers[part.box.slices].ravel() for part in parts])
    lengths = np.concatenate([strings.lengths for strings in found])
    data = b"".join(strings.data for strings in found)
    if np.array_equal(places, numbers.ravel()):
        return Strings(lengths, data)
    order = np.argsort(places)
    starts = np.cumsum(lengths) - lengths
    ordered = bytearray()
    for start, length in zip(starts[order].tolist(), lengths[order].tolist(), strict=True):
        ordered += data[start : start + length]
    return Strings(lengths[order], bytes(ordered))


def _damaged(where: str, how: str) -> CorruptError:
    return CorruptError(f"{where}: {how}; restore the file from a copy")
