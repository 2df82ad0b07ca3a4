"""The header of a safetensors file: 8 bytes of its length, JSON, and then the tensors' bytes.

The tensors are stored in the order of their names in the header, without gaps.

The format's list of dtypes is ``Dtype`` in safetensors 0.8 (``safetensors/src/tensor.rs``). Its 4-bit and 6-bit floats are packed
without padding between values. Here an element takes whole bytes, so that two or four neighbouring values are one element, as
in torch: F4 of shape [2, 8] is float4_e2m1fn_x2 of shape [2, 4].

This project records in ``__metadata__``:

- ``reshard.crc64nvme``: CRC-64/NVME, 16 hex digits, of all bytes before the tensors, taken with zeros for these digits;
- ``reshard.slices``: for a file that holds slices, where they belong (see ``slices``);
- ``reshard.record``: for a checkpoint of one file, the text that is ``slices.json`` in a folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, PlanError
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.dtypes import PACKED, packed_text, storage_bytes

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

    Raises FormatError, naming ``where``, for packed values of which a row does not end with a byte.
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


MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_ALIGNMENT = 8
METADATA = "__metadata__"


class HeaderEntry(Struct, frozen=True):
    """A tensor of a safetensors file; its shape counts elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * storage_bytes(self.dtype)


def safetensors_header(entries: Sequence[HeaderEntry], metadata: Mapping[str, str]) -> bytes:
    """The bytes before those of the tensors.

    Raises PlanError for a dtype or a name that the format does not allow, and for a header that is too large.
    """
    document: dict[str, object] = {METADATA: dict(metadata)}
    offset = 0
    for entry in entries:
        if entry.name in document:
            raise PlanError(
                f"the name {entry.name!r} cannot be used in a safetensors file, which has it already; rename it"
            )
        end = offset + entry.nbytes
        document[entry.name] = {
            "dtype": safetensors_name(entry.dtype, entry.name),
            "shape": list(header_shape(entry.dtype, entry.shape)),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MOST_HEADER_BYTES:
        raise PlanError(
            f"the header of a safetensors file of {len(entries)} tensors has {len(text)} bytes, but the format allows "
            f"{MOST_HEADER_BYTES}; select fewer tensors"
        )
    return len(text).to_bytes(8, "little") + text


HEADER_DIGEST = "reshard.crc64nvme"
RECORD = "reshard.record"

NO_DIGEST = "0" * 16
"""In place of the digits of a digest that is not known yet."""

_MARK = f'"{HEADER_DIGEST}":"'.encode()


def with_digest(header: bytes) -> bytes:
    """The header with its digest in place of the zeros."""
    at = header.index(_MARK) + len(_MARK)
    return header[:at] + digest_of(header).encode() + header[at + len(NO_DIGEST) :]


def check_header(header: bytes, metadata: Mapping[str, str], path: str) -> None:
    """Raises CorruptError where a header records a digest, and has another one."""
    recorded = metadata.get(HEADER_DIGEST)
    if recorded is None:
        return
    at = header.find(_MARK) + len(_MARK)
    end = at + len(NO_DIGEST)
    blank = header[:at] + NO_DIGEST.encode() + header[end:]
    if header[at:end] != recorded.encode() or digest_of(blank) != recorded:
        raise CorruptError(
            f"the header of {path} is not what reshard wrote: it records the digest {recorded[:40]!r} of itself, which it "
            f"does not have; restore the file from a copy, or, if it was changed on purpose, remove {HEADER_DIGEST!r} from "
            "its metadata"
        )
