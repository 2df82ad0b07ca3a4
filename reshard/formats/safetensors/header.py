"""Reads the header of a safetensors file, and refuses every file that does not add up.

::

    8 bytes   length of the header, unsigned, little-endian, at most 100,000,000
    header    JSON: {"__metadata__": {text: text}, NAME: {"dtype": …, "shape": […], "data_offsets": [begin, end]}}
    data      the tensors; offsets count from here, and cover the data exactly, without gap or overlap

The checks are those of the reference implementation (``SafeTensors::read_metadata`` and ``Metadata::validate`` in
``safetensors/src/tensor.rs``), and one more: a name that is given twice is refused, since readers differ in which one
they take.

The dtypes of safetensors, and the shapes of those that pack several values into a byte.

The format's list of dtypes is ``Dtype`` in safetensors 0.8 (``safetensors/src/tensor.rs``). Its 4-bit and 6-bit floats are packed
without padding between values. Here an element takes whole bytes, so that two or four neighbouring values are one element, as
in torch: F4 of shape [2, 8] is float4_e2m1fn_x2 of shape [2, 4].

The header of a safetensors file: 8 bytes of its length, JSON, and then the tensors' bytes.

The tensors are stored in the order of their names in the header, without gaps.

This project records in ``__metadata__``:

- ``reshard.crc64nvme``: CRC-64/NVME, 16 hex digits, of all bytes before the tensors, taken with zeros for these digits;
- ``reshard.slices``: for a file that holds slices, where they belong (see ``slices``);
- ``reshard.record``: for a checkpoint of one file, the text that is ``slices.json`` in a folder.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, PlanError, ReshardError, shorten
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.limits import MAX_LEAVES, MAX_RANK, MAX_TENSOR_BYTES
from reshard.formats.safe_json import (
    checked_text,
    expect,
    expect_sizes,
    not_json,
    refuse_many_values,
)
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.dtypes import PACKED, packed_text, storage_bytes
from reshard.storage.base import FileStatus
from reshard.storage.calls import read_part
from reshard.storage.location import Location

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


LENGTH_BYTES = 8

FIRST_BYTES = 512 << 10
"""Bytes that the first request asks a bucket for, so that one is enough for most headers: 100,000 tensors take some 10 MB, and
a file of a large model a thousandth of that. On a disk the header's length is read by itself."""

_WHAT = "a safetensors file"

_MEMBERS = ("dtype", "shape", "data_offsets")

_ZIP = b"PK\x03\x04"

_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*[0-9]{1,18}\s*,\s*([0-9]{1,18})\s*\]')


class StoredPiece(Struct, frozen=True):
    """A tensor as one file stores it: row-major, little-endian.

    Attributes:
        offset: of its first byte in the file.
        version: identifies the content of the file; see ``FileStatus.version``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    offset: int
    nbytes: int
    version: str = ""

    @property
    def itemsize(self) -> int:
        return storage_bytes(self.dtype)


class FileHeader(Struct, frozen=True):
    """The header of a safetensors file.

    Attributes:
        nbytes: of the header, its length included.
        metadata: text by name, without meaning to the format.
        pieces: in the order in which their bytes lie.
    """

    path: str
    nbytes: int
    metadata: Mapping[str, str]
    pieces: tuple[StoredPiece, ...]


def is_safetensors(file: Location) -> bool:
    """True if it is a plain file that begins as a safetensors file does."""
    try:
        found = file.status()
        if found is None or found.kind != "file":
            return False
        start = read_part(file, found, 0, min(found.nbytes, LENGTH_BYTES + 1))
    except ReshardError:
        return False
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    fits = length <= min(MOST_HEADER_BYTES, found.nbytes - LENGTH_BYTES)
    return fits and start[LENGTH_BYTES:] in (b"{", b" ")


def read_header(file: Location) -> FileHeader:
    """The header of a file.

    Raises StorageError where it cannot be read, CorruptError where the file is cut short or its parts contradict each
    other, FormatError where it uses an unsupported feature.
    """
    path = str(file)
    text, found = _header_text(file)
    document = _parsed(text, path)
    metadata = _metadata(document.pop(METADATA, None), path)
    check_header(len(text).to_bytes(LENGTH_BYTES, "little") + text, metadata, path)
    nbytes = LENGTH_BYTES + len(text)
    pieces = [_piece(name, entry, path, nbytes, found.version) for name, entry in document.items()]
    pieces.sort(key=lambda piece: (piece.offset, piece.nbytes))
    _check_covered(pieces, path, nbytes, found.nbytes)
    return FileHeader(path, nbytes, metadata, tuple(pieces))


def _header_text(file: Location) -> tuple[bytes, FileStatus]:
    """The JSON of the header, and the file's status."""
    found = file.status(_WHAT) or FileStatus("file")  # opening says that it is not there
    if found.kind != "file":
        raise FormatError(f"{file} should be a safetensors file, but is no plain file")
    first_bytes = file.read_bytes(LENGTH_BYTES, FIRST_BYTES)
    start = read_part(file, found, 0, min(first_bytes, found.nbytes), _WHAT)
    if (
        len(start) >= LENGTH_BYTES and start[LENGTH_BYTES - 1]
    ):  # far too long a header, or no header at all
        refuse_stand_in(read_part(file, found, 0, min(START_BYTES, found.nbytes), _WHAT), str(file))
    end = LENGTH_BYTES + _header_length(start, str(file), found.nbytes)
    more = end - len(start)
    rest = read_part(file, found, len(start), more, _WHAT) if more > 0 else b""
    return (start + rest)[LENGTH_BYTES:end], found


def _header_length(start: bytes, path: str, file_bytes: int) -> int:
    """The length that the first bytes name, which must fit the file."""
    if len(start) < LENGTH_BYTES:
        raise _damaged(path, f"has {len(start)} bytes, fewer than the 8 of the header's length")
    if start.startswith(_ZIP):
        raise FormatError(
            f"{path} begins with a zip archive of torch.save; expected a safetensors file. Where a state has values that are "
            "not tensors, such as an optimizer's settings, torch's distributed checkpoint writes them into its safetensors "
            "files, which nothing can read then; save the tensors alone"
        )
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MOST_HEADER_BYTES:
        raise _damaged(
            path,
            f"says that its header has {length:,} bytes; the format allows {MOST_HEADER_BYTES:,}",
        )
    if LENGTH_BYTES + length > file_bytes:
        raise _damaged(
            path, f"says that its header has {length:,} bytes, but ends after {file_bytes:,}"
        )
    return length


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    where = f"the header of {path}"
    text = checked_text(data, where)
    refuse_many_values(data, where)
    try:
        document = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, where))
    except json.JSONDecodeError as error:
        raise not_json(where, text, error.pos, error.msg) from None
    except ValueError as error:  # a number of thousands of digits
        raise not_json(where, text, 0, str(error)) from None
    return expect(document, dict, "it", where)


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        ((name, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise CorruptError(
            f"{where} has the name {name[:200]!r} twice; readers differ in which one they take, so write the file anew "
            "with one of them"
        )
    return made


def _metadata(value: Any, path: str) -> dict[str, str]:
    if value is None:
        return {}
    where = f"the header of {path}"
    found = expect(value, dict, METADATA, where)
    return {
        key: expect(text, str, f"{METADATA}[{key[:80]!r}]", where) for key, text in found.items()
    }


def _piece(name: str, entry: Any, path: str, header_bytes: int, version: str) -> StoredPiece:
    where = f"{path}: tensor {name[:200]!r}"
    members = expect(entry, dict, "its entry", where)
    missing = [member for member in _MEMBERS if member not in members]
    if missing:
        raise CorruptError(f"{where} has no {missing[0]!r} in the header; the file is damaged")
    dtype = dtype_of(expect(members["dtype"], str, "its dtype", where), where)
    shape = expect_sizes(members["shape"], "its shape", where)
    offsets = expect_sizes(members["data_offsets"], "its data_offsets", where)
    if len(shape) > MAX_RANK:
        raise FormatError(f"{where} has {len(shape)} dimensions; at most {MAX_RANK} are supported")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptError(
            f"{where}: its data_offsets should be a begin and an end, but are {shorten(list(offsets))}"
        )
    shape = element_shape(dtype, shape, where)
    nbytes = math.prod(shape) * storage_bytes(dtype)
    if nbytes > MAX_TENSOR_BYTES or nbytes != offsets[1] - offsets[0]:
        raise CorruptError(
            f"{where}: {dtype} of shape {shorten(list(shape))} takes {nbytes:,} bytes, but its data_offsets "
            f"{list(offsets)} hold {offsets[1] - offsets[0]:,}"
        )
    return StoredPiece(name, dtype, shape, path, header_bytes + offsets[0], nbytes, version)


def _check_covered(pieces: list[StoredPiece], path: str, header_bytes: int, size: int) -> None:
    """Refuses holes, overlaps, and data that no tensor covers."""
    if len(pieces) > MAX_LEAVES:
        raise FormatError(f"{path} has {len(pieces):,} tensors; at most {MAX_LEAVES:,} are read")
    end = header_bytes
    for piece in pieces:
        if piece.offset != end:
            what = "leaves a hole before" if piece.offset > end else "overlaps the bytes of"
            raise _damaged(
                path,
                f"{what} tensor {piece.name[:200]!r}: it begins at byte {piece.offset - header_bytes:,} of the data, "
                f"expected {end - header_bytes:,}",
            )
        end += piece.nbytes
    if end > size:
        raise _damaged(
            path, f"ends after {size:,} bytes, but its tensors need {end:,}; it was cut short"
        )
    if end < size:
        raise _damaged(path, f"has {size - end:,} bytes behind its last tensor")


def _damaged(path: str, what: str) -> CorruptError:
    return CorruptError(f"{path} {what}; expected a safetensors file, so restore it from a copy")


def tensor_count(file: Location) -> int:
    """An estimate of the number of tensors, by counting in the text of the header; 0 where it cannot be read."""
    try:
        return _header_text(file)[0].count(b'"data_offsets"')
    except ReshardError:
        return 0


def has_whole_size(file: Location) -> bool:
    """True if a file has the bytes that its header names: one that is being written has fewer."""
    try:
        text, found = _header_text(file)
    except ReshardError:
        return False
    end = max((int(match[1]) for match in _OFFSETS.finditer(text)), default=0)
    return found.nbytes >= LENGTH_BYTES + len(text) + end
