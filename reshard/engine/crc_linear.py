"""The linear part of a CRC: values that combine by shift and XOR, in any order.

A CRC is affine in the message: initial value and final inversion are its constant, the rest is
linear over GF(2). Without the constant, which is the CRC register started at zero and read without
inversion, the value of a message is the XOR of the values of its pieces, each moved left over the
bytes that follow it. The constant comes back once, at the end (``finish``).

Many values at one stride fold 16 at a time: the 16 × 8 bytes of a group index 128 tables of 256
entries, whose XOR is the group's value; log16 steps reduce any number of rows to one value. Tables
cost 256 KiB a stride (128 KiB ÷ 2 for 32 bits) and are kept in a bounded cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

Checksum = Callable[[Any, int], int]

FOLD = 16
"""Values folded into one per step: more costs cache, fewer costs numpy calls (measured)."""

TABLE_CACHE = 48
"""Strides whose tables are kept, 12 MiB at most; a row size of a tensor needs two or three."""

SHORT_RUN_BYTES = 128
"""Longest run that ``linear_of_short`` takes: beyond it a call per run is faster."""

FEW = 4
"""Up to so many values are combined one by one: cheaper than making tables."""


@dataclass(frozen=True, slots=True)
class Crc:
    """A reflected CRC with all-ones initial value and final inversion, computed by awscrt.

    Attributes:
        name: what awscrt calls it.
        width: bits of a value, 64 or 32.
    """

    name: str
    width: int

    @property
    def ones(self) -> int:
        """All bits set: initial value and final XOR."""
        return (1 << self.width) - 1

    def of(self, buffer: Buffer, previous: int = 0) -> int:
        """CRC of a contiguous buffer, continued from ``previous``."""
        return _checksum(self.name)(buffer, previous)

    def combine(self, first: int, second: int, second_bytes: int) -> int:
        """CRC of two messages laid end to end, from the CRC of each."""
        return _combine(self.name)(first, second, second_bytes)

    def linear(self, buffer: Buffer) -> int:
        """Linear part of the CRC of a contiguous buffer."""
        return self.of(buffer, self.ones) ^ self.ones

    def shift(self, value: int, nbytes: int) -> int:
        """The linear value ``value`` moved left over ``nbytes`` zero bytes."""
        return self.combine(value, 0, nbytes) if value and nbytes else value


CRC64NVME = Crc("crc64nvme", 64)
CRC32C = Crc("crc32c", 32)


def finish(crc: Crc, contribution: int, nbytes: int) -> int:
    """The plain CRC of ``nbytes`` bytes whose linear part is ``contribution``."""
    return contribution ^ crc.shift(crc.ones, nbytes) ^ crc.ones


def linear_of_each(crc: Crc, rows: list[Any] | NDArray[Any]) -> NDArray[Any]:
    """Linear part of each row (contiguous buffers), as an array of unsigned integers.

    Holds the GIL while rows are shorter than about 5 KiB.
    """
    checksum, ones = _checksum(crc.name), crc.ones
    values = [checksum(row, ones) for row in rows]
    return np.array(values, _dtype(crc)) ^ _dtype(crc).type(ones)


def linear_of_short(crc: Crc, rows: NDArray[np.uint8]) -> NDArray[Any]:
    """Linear part of each row of ``(..., at most SHORT_RUN_BYTES)`` bytes; releases the GIL."""
    table = _byte_table(crc)[-rows.shape[-1] :]
    return _gather(rows, table)


def fold(crc: Crc, values: NDArray[Any], stride: int) -> NDArray[Any]:
    """Fold the last axis: the value of rows that end ``stride`` bytes after one another.

    ``values[..., -1]`` is the last row's; the result is relative to the end of that row.
    """
    while (count := values.shape[-1]) > 1:
        if pad := -count % FOLD:  # zero rows before the first add nothing
            values = np.concatenate([np.zeros((*values.shape[:-1], pad), values.dtype), values], -1)
        grouped = np.ascontiguousarray(values).reshape(*values.shape[:-1], -1, FOLD)
        values = _gather(grouped.view(np.uint8), _fold_table(crc, stride))
        stride *= FOLD
    return values[..., 0]


def fold_few(crc: Crc, values: NDArray[Any], stride: int) -> int:
    """What ``fold`` gives for one axis of few values, without tables."""
    total = 0
    for value in values.tolist():
        total = crc.shift(total, stride) ^ value
    return total


def _gather(octets: NDArray[np.uint8], table: NDArray[Any]) -> NDArray[Any]:
    places = np.arange(0, table.size, 256)
    return np.bitwise_xor.reduce(table.ravel().take(octets + places), axis=-1)


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


@lru_cache(maxsize=2)
def _checksum(name: str) -> Checksum:
    """The C function where awscrt shows it: its Python wrapper costs 65 ns, a third of a 512 B call."""
    from awscrt import checksums

    try:
        import _awscrt
    except ImportError:
        return getattr(checksums, name)
    return getattr(_awscrt, f"checksums_{name}", None) or getattr(checksums, name)


@lru_cache(maxsize=2)
def _combine(name: str) -> Callable[[int, int, int], int]:
    from awscrt import checksums

    return getattr(checksums, f"combine_{name}")
