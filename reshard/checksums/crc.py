"""The linear part of a CRC: values that combine by shift and XOR, in any order.

A CRC is affine in the message: initial value and final inversion make a constant, the rest is linear over GF(2). The
linear part is the CRC register started at zero and read without inversion. The linear part of a message is the XOR of
those of its pieces, each moved left over the bytes that follow it. The constant is added once, at the end (``finish``).

Many values at one stride fold 16 at a time: the 16 × 8 bytes of a group index 128 tables of 256
entries, whose XOR is the group's value; log16 steps reduce any number of rows to one value. Tables
cost 256 KiB a stride (64 KiB for 32 bits) and are kept in a bounded cache.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer


_Update = Callable[[Any, int], int]

FOLD = 16
"""Values folded into one per step: more take more cache, fewer need more numpy calls (measured)."""

TABLE_CACHE = 48
"""Strides whose tables are kept, 12 MiB at most; a row size of a tensor needs one to three."""

SHORT_RUN_BYTES = 64
"""Longest run that ``linear_of_short`` takes: beyond it a call per run is faster."""

FEW = 8
"""Up to this many values are combined one by one, which is cheaper than a step with tables."""


class Crc(Struct, frozen=True):
    """A reflected CRC with all-ones initial value and final inversion, computed by awscrt or zlib.

    Attributes:
        name: its name in awscrt.
        width: bits of a value, 64 or 32.
        title: its name in messages.
    """

    name: str
    width: int
    title: str

    @property
    def ones(self) -> int:
        """All bits set: initial value and final XOR."""
        return (1 << self.width) - 1

    def of(self, buffer: Buffer | NDArray[Any], previous: int = 0) -> int:
        """CRC of a contiguous buffer, continued from ``previous``."""
        return _checksum(self.name)(buffer, previous)

    def combine(self, first: int, second: int, second_bytes: int) -> int:
        """CRC of two messages laid end to end, from the CRC of each."""
        return _combine(self.name)(first, second, second_bytes)

    def linear(self, buffer: Buffer | NDArray[Any]) -> int:
        """Linear part of the CRC of a contiguous buffer."""
        return self.of(buffer, self.ones) ^ self.ones

    def shift(self, value: int, nbytes: int) -> int:
        """The linear value ``value`` moved left over ``nbytes`` zero bytes."""
        return self.combine(value, 0, nbytes) if value and nbytes else value


CRC64NVME = Crc("crc64nvme", 64, "CRC-64/NVME")
CRC32C = Crc("crc32c", 32, "CRC32C")
CRC32 = Crc("crc32", 32, "CRC-32")
"""Of zip archives; ``zlib.crc32``."""

CRC32C_OF_CHECKED = 0x48674BC7
"""CRC32C of any bytes that are followed by their own CRC32C, little-endian."""


def finish(crc: Crc, contribution: int, nbytes: int) -> int:
    """The plain CRC of ``nbytes`` bytes whose linear part is ``contribution``."""
    return contribution ^ crc.shift(crc.ones, nbytes) ^ crc.ones


def linear_part(crc: Crc, value: int, nbytes: int) -> int:
    """The linear part of ``nbytes`` bytes whose plain CRC is ``value``; the inverse of ``finish``."""
    return value ^ finish(crc, 0, nbytes)


def crc_of_parts(crc: Crc, parts: Iterable[tuple[int, int, int]], nbytes: int) -> int:
    """The plain CRC of ``nbytes`` bytes, from parts that cover them, in any order.

    A part is its offset, its length in bytes and its plain CRC.
    """
    total = 0
    for offset, length, value in parts:
        total ^= crc.shift(linear_part(crc, value, length), nbytes - offset - length)
    return finish(crc, total, nbytes)


def linear_of_each(crc: Crc, batches: Iterable[Iterable[Any]]) -> NDArray[Any]:
    """Linear part of each row (contiguous buffers, in batches), as an array of unsigned integers.

    Holds the GIL while rows are shorter than about 5 KiB.
    """
    checksum, ones, values = _checksum(crc.name), repeat(crc.ones), list[int]()
    for rows in batches:
        values.extend(map(checksum, rows, ones))
    return ~np.array(values, _dtype(crc))


def linear_of_short(crc: Crc, rows: NDArray[np.uint8]) -> NDArray[Any]:
    """Linear part of each row of ``(..., at most SHORT_RUN_BYTES)`` bytes; releases the GIL."""
    table = _byte_table(crc)[-rows.shape[-1] :]
    return _gather(rows, table)


def fold(crc: Crc, values: NDArray[Any], stride: int) -> int:
    """The value of rows whose ends are ``stride`` bytes apart, relative to the end of the last."""
    total = 0
    values, stride = _fold_many(crc, values, stride, FEW)
    for value in values.tolist():
        total = crc.shift(total, stride) ^ value
    return total


def fold_last(crc: Crc, values: NDArray[Any], stride: int) -> NDArray[Any]:
    """``fold`` along the last of several axes."""
    return _fold_many(crc, values, stride, 1)[0][..., 0]


def _fold_many(crc: Crc, values: NDArray[Any], stride: int, most: int) -> tuple[NDArray[Any], int]:
    """Fold the last axis until it has at most ``most`` values; returns them and their stride."""
    while (count := values.shape[-1]) > most:
        lead, groups = values.shape[:-1], -(-count // FOLD)
        if count != groups * FOLD:  # zero rows before the first add nothing
            padded = np.zeros((*lead, groups * FOLD), values.dtype)
            padded[..., -count:] = values
            values = padded
        octets = np.ascontiguousarray(values).view(np.uint8).reshape(*lead, groups, -1)
        values = _gather(octets, _fold_table(crc, stride))
        stride *= FOLD
    return values, stride


def _gather(octets: NDArray[np.uint8], table: NDArray[Any]) -> NDArray[Any]:
    entries = table.ravel().take(octets + _places(len(table)))
    return np.asarray(np.bitwise_xor.reduce(entries, axis=-1))


@lru_cache(maxsize=2 * SHORT_RUN_BYTES)
def _places(rows: int) -> NDArray[np.intp]:
    """The start of each of ``rows`` tables in their flat array."""
    return np.arange(0, 256 * rows, 256, dtype=np.intp)


@lru_cache(maxsize=TABLE_CACHE)
def _fold_table(crc: Crc, stride: int) -> NDArray[Any]:
    """``[row * width/8 + byte, octet]``: a value's byte moved over ``(FOLD - 1 - row) * stride``."""
    bits = np.array([1 << b for b in range(crc.width)], _dtype(crc))
    once = _expand(np.array([crc.shift(1 << b, stride) for b in range(crc.width)], _dtype(crc)))
    images = [bits]
    for _ in range(FOLD - 1):
        images.append(_gather(images[-1].view(np.uint8).reshape(-1, crc.width // 8), once))
    return _expand(np.concatenate(images[::-1]))


@lru_cache(maxsize=2)
def _byte_table(crc: Crc) -> NDArray[Any]:
    """``[place, octet]``: linear part of an octet at ``place`` of ``SHORT_RUN_BYTES`` bytes."""
    octets = [crc.linear(bytes([1 << b])) for b in range(8)]
    images = [[crc.shift(v, n) for v in octets] for n in reversed(range(SHORT_RUN_BYTES))]
    return _expand(np.array(images, _dtype(crc)).ravel())


def _expand(images: NDArray[Any]) -> NDArray[Any]:
    """Tables of 256 entries from the images of their 8 bits, read-only because they are shared."""
    images = images.reshape(-1, 8)
    table = np.zeros((len(images), 256), images.dtype)
    for bit in range(8):
        half = 1 << bit
        table[:, half : 2 * half] = table[:, :half] ^ images[:, bit : bit + 1]
    table.flags.writeable = False
    return table


def _dtype(crc: Crc) -> np.dtype[Any]:
    return np.dtype(f"<u{crc.width // 8}")


@lru_cache(maxsize=3)
def _checksum(name: str) -> _Update:
    # awscrt's has no vector instructions on x86: 2.8 GiB/s in one thread, zlib's 3.9 (measured).
    if name == CRC32.name:
        return zlib.crc32
    return _c_function(f"checksums_{name}", name)


@lru_cache(maxsize=3)
def _combine(name: str) -> Callable[[int, int, int], int]:
    return _c_function(f"checksums_{name}_combine", f"combine_{name}")


def _c_function(c_name: str, name: str) -> Callable[..., int]:
    """awscrt's C function if it is accessible: the Python wrapper takes a third of the time of a short call."""
    from awscrt import checksums

    wrapper: Callable[..., int] = getattr(checksums, name)
    try:
        fast: Callable[..., int] = getattr(import_module("_awscrt"), c_name, wrapper)
    except ImportError:
        return wrapper
    return fast


READ_BYTES = 1 << 20
"""Memory that one call takes."""


def range_crc32c(read: Callable[[int, int], bytes], offset: int, nbytes: int) -> int | None:
    """CRC32C of ``nbytes`` from ``offset``; None if the file ends before. ``read`` as in ``range_crc``."""
    return range_crc(CRC32C, read, offset, nbytes)


def range_crc(crc: Crc, read: Callable[[int, int], bytes], offset: int, nbytes: int) -> int | None:
    """A CRC of ``nbytes`` from ``offset``; None if the file ends before.

    Args:
        read: takes an offset and a number of bytes, and gives these bytes; none after the end of the file.
    """
    value, at, end = 0, offset, offset + nbytes
    while at < end:
        data = read(at, min(READ_BYTES, end - at))
        if not data:
            return None
        value, at = crc.of(data, value), at + len(data)
    return value
