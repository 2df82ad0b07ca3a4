"""The dtypes of safetensors and their names here.

The format's list is ``Dtype`` in safetensors 0.8 (``safetensors/src/tensor.rs``). Its 4-bit and 6-bit floats are packed
without padding between elements; here an element takes at least a byte, so those are not read.
"""

from __future__ import annotations

from reshard.errors import FormatError, PlanError

_NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip

_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits of an element of the dtypes that are packed."""


def safetensors_name(dtype: str, tensor: str) -> str:
    """The format's name of a dtype. Raises PlanError, naming ``tensor``, where it has none."""
    name = _NAMES.get(dtype)
    if name is None:
        raise PlanError(
            f"{tensor!r} is {dtype}, which safetensors files do not have; drop it, or cast it to one of "
            f"{', '.join(_NAMES)}"
        )
    return name


def dtype_of(name: str, where: str) -> str:
    """The dtype of that name in a header. Raises FormatError, naming ``where``, for one that is not read."""
    dtype = _DTYPES.get(name)
    if dtype is not None:
        return dtype
    if name in PACKED_BITS:
        raise FormatError(
            f"{where} is {name}, of {PACKED_BITS[name]} bits an element and packed, which is not supported; "
            "leave the file out, or store the tensor as U8"
        )
    raise FormatError(f"{where} has the dtype {name[:40]!r}; expected one of: {', '.join(_DTYPES)}")
