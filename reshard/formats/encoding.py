"""The stored form of a chunk's bytes, as a record and as words."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from msgspec import Struct

from reshard.errors import PlanError

Gathered = Literal["no", "in ranges", "at once"]
"""The ways to gather a chunk from raw pieces: not at all; yes, and any range of it can be read alone; yes, and all of it is
read at once, because pieces have another order of axes."""

Compressor = Literal["none", "zstd", "blosc", "gzip", "zlib", "tensorstore", "delta"]


class Encoding(Struct, frozen=True):
    """The stored form of a chunk's bytes: little-endian elements, row-major but for ``axis_order``, compressed, then checked.

    Attributes:
        compressor: the compression of the element bytes; ``"tensorstore"`` means any codec chain that only
            TensorStore decodes, given by ``spec``.
        level: the compressor's level, where it has one.
        checksum: True if a CRC32C of the (compressed) bytes follows them, 4 bytes little-endian.
        spec: for ``"tensorstore"`` the JSON of a TensorStore spec of an array of one such chunk;
            for ``"blosc"`` the JSON of its parameters (cname, shuffle, blocksize); for ``"delta"``, raw bytes with
            ``Extent.layers``, the number of zstd frames that are decoded side by side; else "".
        gathered: the way in which chunks are made of raw pieces, if they are; then nothing is compressed or checked.
        read_ahead_bytes: memory in which a stream over a chunk reads ahead, where requests take long; 0 where short
            reads are cheap.
        axis_order: the axes as the chunk stores them, slowest first, where that is not row-major; else (). One more than the tensor has
            means the bytes of an element, where they are stored apart (HDF5's shuffle).
    """

    compressor: Compressor = "none"
    level: int | None = None
    checksum: bool = False
    spec: str = ""
    gathered: Gathered = "no"
    read_ahead_bytes: int = 0
    axis_order: tuple[int, ...] = ()

    @property
    def is_bare(self) -> bool:
        """True if a chunk is its elements' bytes and nothing else, so that nothing in it shows damage."""
        return self.compressor == "none" and not self.checksum


_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10)}
_DEFAULT_LEVEL = {"zstd": 1, "gzip": 6}

CHECKSUM = "+crc32c"
"""Ends the name of a codec that appends a checksum; the bytes before it are the same without it."""


def parse_compression(text: str) -> Encoding | None:
    """``none``, ``zstd[:level]``, ``gzip[:level]``, ``blosc`` or ``keep`` (None) as an Encoding.

    >>> parse_compression("zstd:3").level
    3
    """
    name, _, level = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text == "keep":
        return None
    if text == "none":
        return Encoding(checksum=True)
    if text == "blosc":
        return Encoding(
            "blosc", 1, checksum=True, spec='{"cname": "lz4", "shuffle": 1, "blocksize": 0}'
        )
    if name in _LEVELS:
        number = _level(text, level) if level else _DEFAULT_LEVEL[name]
        if number in _LEVELS[name]:
            return Encoding(name, number, checksum=True)  # type: ignore[arg-type] # a key of _LEVELS
    raise PlanError(
        f"compression {text!r} is not known; expected none, zstd[:level up to 22], gzip[:0-9], blosc or keep"
    )


def _level(text: str, level: str) -> int:
    try:
        return int(level)
    except ValueError:
        raise PlanError(f"compression {text!r}: the level must be a whole number") from None


@lru_cache(maxsize=256)
def codec_name(encoding: Encoding) -> str:
    """One word for people and for comparing: ``raw+crc32c``, ``zstd:1``.

    ``turned zstd:1`` if chunks store their axes in another order; no target does. ``pieces`` for a chunk that is gathered from raw pieces: it
    is not one range of a file, so it cannot be copied.
    """
    if encoding.gathered != "no":
        return "pieces"
    name = "raw" if encoding.compressor == "none" else encoding.compressor
    level = "" if encoding.level is None or name == "raw" else f":{encoding.level}"
    turned = "turned " if encoding.axis_order else ""
    return turned + name + level + (CHECKSUM if encoding.checksum else "")
