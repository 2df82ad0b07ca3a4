"""Sizes in bytes as people write and read them: ``256KiB``, ``1.5GiB``, ``64MB``, ``4096``."""

from __future__ import annotations

import re

from reshard.errors import LayoutError, shorten

MAX_BYTES = 1 << 63
"""No file system or memory is larger; a larger number is a mistake or an attack."""

_PREFIXES = "KMGTPE"
_UNITS = {"": 1, "b": 1} | {
    f"{prefix.lower()}{suffix}": base**power
    for power, prefix in enumerate(_PREFIXES, start=1)
    for suffix, base in (("ib", 1024), ("i", 1024), ("b", 1000), ("", 1000))
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\s*", re.ASCII)


def parse_bytes(text: str | int) -> int:
    """The number of bytes in ``text``; units with an ``i`` are powers of 1024, others of 1000.

    A fraction is rounded down to whole bytes. Raises LayoutError for anything else, for negative numbers and for
    sizes beyond any machine.

    >>> parse_bytes("1.5KiB"), parse_bytes("2MB"), parse_bytes("100"), parse_bytes(100)
    (1536, 2000000, 100, 100)
    """
    found = _SIZE.fullmatch(str(text)) if _is_size(text) else None
    if found is None or found[2].lower() not in _UNITS:
        raise LayoutError(
            f"{shorten(text, 60)} is not a size in bytes; expected a number with a unit such as 1GiB, 256MiB, "
            "64KB, or whole bytes such as 4096"
        )
    from decimal import Decimal

    size = int(Decimal(found[1]) * _UNITS[found[2].lower()])
    if size > MAX_BYTES:
        raise LayoutError(
            f"{shorten(text, 60)} is more bytes than any machine holds; expected at most 8EiB"
        )
    return size


def exact_bytes(size: int) -> str:
    """In MiB if that is a whole number, else in bytes.

    >>> exact_bytes(256 << 20), exact_bytes(1000)
    ('256 MiB', '1000 bytes')
    """
    mebibytes, rest = divmod(size, 1 << 20)
    return f"{size} bytes" if rest else f"{mebibytes} MiB"


def shortest_bytes(size: int) -> str:
    """The same number of bytes as ``parse_bytes`` reads it, in the largest unit of 1024 that is exact.

    >>> shortest_bytes(1 << 30), shortest_bytes(1536), shortest_bytes(1000)
    ('1GiB', '1536', '1000')
    """
    units = [(1024**power, f"{prefix}iB") for power, prefix in enumerate(_PREFIXES, start=1)]
    fitting = [f"{size // base}{unit}" for base, unit in units if size >= base and not size % base]
    return fitting[-1] if fitting else str(size)


def format_bytes(size: float) -> str:
    """Three digits and a unit of 1024; whole bytes below 1 KiB.

    >>> format_bytes(512), format_bytes(1536), format_bytes(3 << 30)
    ('512 B', '1.50 KiB', '3.00 GiB')
    """
    value, unit = float(size), "B"
    for prefix in _PREFIXES:
        if abs(value) < 999.5:
            break
        value, unit = value / 1024, f"{prefix}iB"
    if unit == "B":
        return f"{value:.0f} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def _is_size(text: object) -> bool:
    return isinstance(text, str | int) and not isinstance(text, bool)
