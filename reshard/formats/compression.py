"""Parses the name of a compression, such as ``zstd:3``, into an Encoding."""

from __future__ import annotations

from reshard.errors import PlanError
from reshard.formats.base import Encoding

_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10)}
_DEFAULT_LEVEL = {"zstd": 1, "gzip": 6}


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
