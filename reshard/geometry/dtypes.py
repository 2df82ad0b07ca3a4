"""Element types by name: stored bytes, the numpy dtypes that view them as numbers or as bits, and elements from Python numbers."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reshard.errors import FormatError

if TYPE_CHECKING:
    import numpy as np


_STORAGE_BYTES = {
    "bool": 1, "int2": 1, "int4": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint2": 1, "uint4": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float4_e2m1fn": 1, "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip

DTYPES = tuple(_STORAGE_BYTES)
"""Every known element type with one value an element."""

PACKED = {"float4_e2m1fn_x2": (2, 1), "float6_e2m3fn_x4": (4, 3), "float6_e3m2fn_x4": (4, 3)}
"""Packed element types, named as in torch: the number of neighbouring values in one element, and its bytes. Such tensors are
moved and compared as bytes, never cast, and only safetensors files hold them."""

VALUE_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
"""Bits of types that are stored one to a byte; the other bits of the byte may be anything, and are hashed as zero."""

NOT_STORED = frozenset({"uint2", "uint4", "float8_e4m3"})
"""Dtypes that TensorStore lacks; no checkpoint has them."""

STORED_DTYPES = tuple(dtype for dtype in DTYPES if dtype not in NOT_STORED)
"""Every element type that a checkpoint can hold."""


SHORT_NAMES = {
    "bf16": "bfloat16", "f16": "float16", "fp16": "float16", "f32": "float32", "fp32": "float32", "f64": "float64",
    "fp64": "float64", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip
"""Names of floating dtypes as people write them, and as safetensors shows them."""


def dtype_name(dtype: object) -> str | None:
    """The name of a dtype in any form: a name, a short name, a dtype of numpy, a scalar type of numpy, ml_dtypes or jax.

    None for anything else, and for a dtype that no checkpoint knows. Python's ``float`` and ``int`` name no size.

    >>> import numpy as np
    >>> dtype_name("bf16"), dtype_name(np.float32), dtype_name(np.dtype(">i2")), dtype_name(float)
    ('bfloat16', 'float32', 'int16', None)
    """
    if isinstance(dtype, str):
        name = SHORT_NAMES.get(dtype, dtype)
        return name if name in _STORAGE_BYTES else None
    name = _name_in_numpy(dtype)
    return name if name in _STORAGE_BYTES else None


def _name_in_numpy(dtype: object) -> str:
    """The name of a dtype of numpy, ml_dtypes or jax; "" for anything else. Scalar types of jax have their dtype as an attribute."""
    import numpy as np

    found = getattr(dtype, "dtype", None) if isinstance(dtype, type) else dtype
    if isinstance(found, np.dtype):
        return found.name
    if isinstance(dtype, type) and dtype.__module__ in ("numpy", "ml_dtypes"):
        return dtype.__name__.rstrip("_")
    return ""


@lru_cache(maxsize=256)  # a plan asks for each tensor some forty times; errors are not kept
def storage_bytes(dtype: str) -> int:
    """Bytes of one stored element; types below 8 bits are stored one to a byte, unless they are packed."""
    if (nbytes := _STORAGE_BYTES.get(dtype)) is not None:
        return nbytes
    try:
        return PACKED[dtype][1]
    except KeyError:
        raise FormatError(
            f"dtype {dtype!r} is not known; expected one of: {', '.join(DTYPES)}"
        ) from None


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype of that name, from ml_dtypes if numpy has none; FormatError if neither has one."""
    import ml_dtypes
    import numpy as np

    if dtype in PACKED:
        raise FormatError(
            f"{dtype}, {packed_text(dtype)}, is read as bytes only: numpy has no such type"
        )
    storage_bytes(dtype)
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def packed_text(dtype: str) -> str:
    """The content of an element of a packed type, in words.

    >>> packed_text("float4_e2m1fn_x2")
    '2 values in a byte'
    """
    values, nbytes = PACKED[dtype]
    return f"{values} values in {'a byte' if nbytes == 1 else f'{nbytes} bytes'}"


def is_known(dtype: object) -> bool:
    """True for the name of an element type, packed or not."""
    return isinstance(dtype, str) and (dtype in _STORAGE_BYTES or dtype in PACKED)


def element_dtype(dtype: str, *, is_cast: bool) -> np.dtype[Any]:
    """The dtype that views elements while they move: their own for a cast, else integers, which keep every bit."""
    return numpy_dtype(dtype) if is_cast else opaque_dtype(storage_bytes(dtype))


def opaque_dtype(itemsize: int) -> np.dtype[Any]:
    """A dtype of that size for copies that keep every bit."""
    import numpy as np

    return np.dtype({1: "u1", 2: "u2", 3: "V3", 4: "u4", 8: "u8", 16: "c16"}[itemsize])


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


def narrowed_by_jax(dtype: Any) -> str | None:
    """The dtype to which jax would narrow this one now; None if jax keeps it."""
    import jax

    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return None
    held = jax.dtypes.canonicalize_dtype(dtype)
    return None if held == dtype else str(held)
