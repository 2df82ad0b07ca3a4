"""Encoded chunks that are not what they say: bombs, several frames, trailing bytes, lying headers."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from functools import lru_cache

import zstandard

from tests.robustness.hostile.damage_ocdbt import damage_bytes

BOMB_BYTES = 1 << 28


@lru_cache
def zstd_bomb(nbytes: int = BOMB_BYTES, window_log: int | None = None) -> bytes:
    """A frame of some kilobytes that decodes to ``nbytes`` zeros and does not say so."""
    options = {} if window_log is None else {"window_log": window_log, "enable_ldm": True}
    parameters = zstandard.ZstdCompressionParameters.from_level(1, **options)
    squeeze = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    piece = bytes(1 << 20)
    return b"".join([squeeze.compress(piece) for _ in range(nbytes >> 20)]) + squeeze.flush()


@lru_cache
def gzip_bomb(nbytes: int = BOMB_BYTES) -> bytes:
    return gzip.compress(bytes(nbytes), 9, mtime=0)


def skippable(data: bytes) -> bytes:
    """A frame that every zstd decoder passes over."""
    return struct.pack("<II", 0x184D2A50, len(data)) + data


def damage_chunk(rng: random.Random, data: bytes) -> bytes:
    """Other bytes in place of a chunk's."""
    how = rng.randrange(12)
    if how >= 10 or (how in (7, 8) and len(data) < 16):
        return damage_bytes(rng, data, rng.choice((1, 3)))
    return _INSTEAD[how](rng, data)


def _lie(rng: random.Random, data: bytes) -> bytes:
    sizes = [rng.choice((0, 1, 15, 2**31, 2**32 - 1, len(data), 4096)) for _ in range(3)]
    return data[:4] + struct.pack("<3I", *sizes) + data[16:]


_INSTEAD: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda _, __: zstd_bomb(),
    lambda _, __: gzip_bomb(),
    lambda _, data: data + data,
    lambda _, data: data + skippable(bytes(10)),
    lambda _, data: skippable(bytes(10)) + data,
    lambda rng, data: data + rng.randbytes(rng.choice((1, 4, 1000))),
    lambda _, __: zstd_bomb(1 << 24, 27),
    _lie,
    lambda rng, data: damage_bytes(rng, data[:16], 1) + data[16:],
    lambda _, __: b"",
)
