"""The fill value of an array, from its JSON form to the bytes of one element."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from reshard.errors import CorruptError
from reshard.formats.json.safe_json import shorten
from reshard.geometry.dtypes import numpy_dtype, storage_bytes

if TYPE_CHECKING:
    import numpy as np

_WORDS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}

_WITHOUT_ZERO = ("float8_e8m0fnu",)
"""Types that have powers of two only; 0 becomes NaN in them."""


def fill_bytes(value: Any, dtype: str, where: str) -> bytes:
    """Little-endian bytes of the fill element; zeros for null.

    ``value`` may be a number, a boolean, a pair (complex), NaN, Infinity or -Infinity, raw bits
    as ``"0x…"`` (zarr 3) and raw bytes as base64 (zarr 2).

    Raises CorruptError for a value that is not an element of that dtype.
    """
    if value is None or _is_zero(value, dtype):
        return bytes(storage_bytes(dtype))
    try:
        element = _raw(value, dtype) or _number(value, numpy_dtype(dtype))
    except (LookupError, ValueError, TypeError, ArithmeticError, binascii.Error):
        element = b""
    if len(element) != storage_bytes(dtype):
        raise CorruptError(
            f"{where}: fill_value should be an element of {dtype}, but is {shorten(value)}"
        )
    return element


def _is_zero(value: Any, dtype: str) -> bool:
    """Whether it is the usual fill 0, which needs no package of number types."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and str(value) in ("0", "0.0") and dtype not in _WITHOUT_ZERO


def _raw(value: Any, dtype: str) -> bytes:
    if not isinstance(value, str) or value in _WORDS:
        return b""
    if value.startswith("0x"):
        return int(value, 0).to_bytes(storage_bytes(dtype), "little")
    return base64.b64decode(value, validate=True)


def _parsed(value: Any) -> Any:
    """A number, a boolean, a pair of numbers as one complex, or a word."""
    if isinstance(value, list):
        real, imaginary = (
            float(_WORDS.get(v, v)) if isinstance(v, str) else float(v) for v in value
        )
        return complex(real, imaginary)
    return float(_WORDS[value]) if isinstance(value, str) else value


def _number(value: Any, dtype: np.dtype) -> bytes:
    import numpy as np

    number = _parsed(value)
    if isinstance(number, complex) and dtype.kind != "c":
        raise TypeError("a pair of numbers is complex")
    if dtype.kind == "b" and number not in (0, 1):
        raise TypeError("a boolean is 0 or 1")
    if isinstance(number, float) and number.is_integer() and "int" in dtype.name:
        number = int(number)
    with np.errstate(all="raise", under="ignore"):
        element = np.asarray(number).astype(dtype)
    if "int" in dtype.name and (not isinstance(number, int) or int(element) != number):
        raise OverflowError("no integer, or one that does not fit")
    return element.tobytes()
