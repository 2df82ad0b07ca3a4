"""Python numbers as elements of a tensor, as Orbax stores them."""

from __future__ import annotations

import struct
from typing import Any

_LARGEST_INT64 = (1 << 63) - 1


def element_of(value: Any) -> tuple[str, bytes]:
    """The dtype in which Orbax stores a bool, int, float or complex, and its little-endian bytes. TypeError for anything else.

    >>> element_of(True)
    ('bool', b'\\x01')
    """
    if isinstance(value, bool):
        return "bool", struct.pack("<?", value)
    if isinstance(value, int):
        is_large = value > _LARGEST_INT64
        return ("uint64", struct.pack("<Q", value)) if is_large else ("int64", struct.pack("<q", value))  # fmt: skip
    if isinstance(value, float):
        return "float64", struct.pack("<d", value)
    if isinstance(value, complex):
        return "complex128", struct.pack("<dd", value.real, value.imag)
    raise TypeError(f"no number: {type(value)}")


_STORED = {"bool": "<?", "int64": "<q", "uint64": "<Q", "float64": "<d", "complex128": "<dd"}

NUMBER_DTYPES = frozenset(_STORED)
"""Element types of Python numbers."""


def number_of(dtype: str, element: bytes) -> bool | int | float | complex:
    """The Python number of an element, as ``element_of`` gives it; ``dtype`` is one of ``NUMBER_DTYPES``.

    >>> number_of("int64", element_of(-3)[1])
    -3
    """
    parts = struct.unpack(_STORED[dtype], element)
    found: bool | int | float | complex = complex(*parts) if len(parts) > 1 else parts[0]
    return found
