"""Sizes in bytes as people write them: ``256KiB``, ``1.5GiB``, ``64MB``, ``4096``."""

from __future__ import annotations

import re
from decimal import Decimal

from reshard.errors import LayoutError

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("iB", 1024), ("i", 1024), ("B", 1000), ("", 1000))
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes that ``text`` stands for; powers of 1024 with an ``i``, of 1000 without.

    >>> parse_bytes("1.5KiB"), parse_bytes("2MB"), parse_bytes("100")
    (1536, 2000000, 100)
    """
    found = _SIZE.fullmatch(text)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise LayoutError(
            f"{text!r} is not a size in bytes; expected a number with a unit such as 1GiB, 256MiB or 64KB"
        )
    return int(Decimal(found[1]) * units[found[2].lower()])
