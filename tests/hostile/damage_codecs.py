"""Encoded chunks that are not what they say: bombs, several frames, trailing bytes, lying headers."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from functools import lru_cache

import zstandard

from tests.hostile.damage_ocdbt import damage_bytes

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


@lru_cache
def zlib_bomb(nbytes: int = BOMB_BYTES) -> bytes:
    return zlib.compress(bytes(nbytes), 9)


@lru_cache
def bz2_bomb(nbytes: int = BOMB_BYTES) -> bytes:
    import bz2

    return bz2.compress(bytes(nbytes))


def skippable(data: bytes) -> bytes:
    """A frame that every zstd decoder passes over."""
    return struct.pack("<II", 0x184D2A50, len(data)) + data


def blosc_header(
    decoded: int, block: int, encoded: int, flags: int = 0x21, typesize: int = 1
) -> bytes:
    return struct.pack("<4B3I", 2, 1, flags, typesize, decoded, block, encoded)


def damage_chunk(rng: random.Random, data: bytes) -> bytes:
    """Other bytes in place of a chunk's."""
    how = rng.randrange(12)
    if how == 0:
        return zstd_bomb()
    if how == 1:
        return gzip_bomb()
    if how == 2:
        return data + data
    if how == 3:
        return data + skippable(bytes(10))
    if how == 4:
        return skippable(bytes(10)) + data
    if how == 5:
        return data + rng.randbytes(rng.choice((1, 4, 1000)))
    if how == 6:
        return zstd_bomb(1 << 24, 27)
    if how == 7 and len(data) >= 16:
        sizes = [rng.choice((0, 1, 15, 2**31, 2**32 - 1, len(data), 4096)) for _ in range(3)]
        return data[:4] + struct.pack("<3I", *sizes) + data[16:]
    if how == 8 and len(data) >= 16:
        return damage_bytes(rng, data[:16], 1) + data[16:]
    if how == 9:
        return b""
    return damage_bytes(rng, data, rng.choice((1, 3)))
