"""Element types by their names in torch's pickles and in the rest of the project."""

from __future__ import annotations

from reshard.errors import FormatError
from reshard.geometry.dtypes import is_known

_PREFIX = "torch."

TORCH_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
)  # fmt: skip
"""As attributes of ``torch``; those that no tensor here may have are refused by name."""

DTYPE_NAMES = {f"{_PREFIX}{dtype}": f"{_PREFIX}{dtype}" for dtype in TORCH_DTYPES}
"""For the list of names that a pickle may use."""

TENSOR_DTYPES = tuple(dtype for dtype in TORCH_DTYPES if is_known(dtype))
"""Those that tensors here may have."""

STORAGE_DTYPES = {
    "BoolStorage": "bool", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "ByteStorage": "uint8", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "FloatStorage": "float32",
    "DoubleStorage": "float64", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
"""The element type of each typed storage: a class of ``torch``."""


def dtype_of(name: str, where: str) -> str:
    """The element type that torch calls ``torch.<name>``.

    Raises FormatError, beginning with ``where``, for one that is not read.
    """
    dtype = name.removeprefix(_PREFIX)
    if name.startswith(_PREFIX) and is_known(dtype):
        return dtype
    kind = "quantised" if dtype.startswith(("qint", "quint")) else "of a type that is not read"
    raise FormatError(
        f"{where} is {name}, {kind}; leave it out where it is saved, or save it as plain numbers (dequantize, to)"
    )
