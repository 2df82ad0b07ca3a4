"""Names of encodings: parses a compression such as ``zstd:3``, and names the codec of an Encoding."""

from __future__ import annotations

from functools import lru_cache

from reshard.errors import PlanError
from reshard.formats.contents import Encoding

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

    ``turned zstd:1`` if chunks store their axes in another order; no target does. ``pieces`` for a chunk that is gathered from raw pieces: it is not one range of a file, so it cannot be copied.
    """
    if encoding.gathered != "no":
        return "pieces"
    name = "raw" if encoding.compressor == "none" else encoding.compressor
    level = "" if encoding.level is None or name == "raw" else f":{encoding.level}"
    turned = "turned " if encoding.axis_order else ""
    return turned + name + level + (CHECKSUM if encoding.checksum else "")
