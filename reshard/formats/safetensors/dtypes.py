"""The dtypes of safetensors, and the shapes of those that pack several values into a byte.

The format's list of dtypes is ``Dtype`` in safetensors 0.8 (``safetensors/src/tensor.rs``). Its 4-bit and 6-bit floats are packed
without padding between values. Here an element takes whole bytes, so that two or four neighbouring values are one element, as
in torch: F4 of shape [2, 8] is float4_e2m1fn_x2 of shape [2, 4].
"""

from __future__ import annotations

from reshard.errors import FormatError, PlanError
from reshard.geometry.dtypes import PACKED, packed_text

_NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4", "float6_e2m3fn_x4": "F6_E2M3", "float6_e3m2fn_x4": "F6_E3M2",
}  # fmt: skip

_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def safetensors_name(dtype: str, tensor: str) -> str:
    """The format's name of a dtype. Raises PlanError, naming ``tensor``, where it has none."""
    name = _NAMES.get(dtype)
    if name is None:
        raise PlanError(
            f"{tensor!r} is {dtype}, which safetensors files do not have; drop it, or cast it to one of "
            f"{', '.join(name for name in _NAMES if name not in PACKED)}"
        )
    return name


def dtype_of(name: str, where: str) -> str:
    """The dtype of that name in a header. Raises FormatError, naming ``where``, for one that is not read."""
    dtype = _DTYPES.get(name)
    if dtype is not None:
        return dtype
    raise FormatError(f"{where} has the dtype {name[:40]!r}; expected one of: {', '.join(_DTYPES)}")


def element_shape(dtype: str, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Shape or offset of a tensor in elements, from that in a header, which counts values.

    Raises FormatError, naming ``where``, if a row of packed values does not end with a byte.
    """
    if dtype not in PACKED:
        return shape
    values = PACKED[dtype][0]
    if not shape or shape[-1] % values:
        raise FormatError(
            f"{where} is {list(shape)} of {_NAMES[dtype]}, {packed_text(dtype)}; expected a last number that {values} divides; "
            "leave the file out, or store the tensor as U8"
        )
    return (*shape[:-1], shape[-1] // values)


def header_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape or offset of a tensor as a header has it, in values."""
    return (*shape[:-1], shape[-1] * PACKED[dtype][0]) if dtype in PACKED else shape
