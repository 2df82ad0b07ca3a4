"""The header of a safetensors file: 8 bytes of its length, JSON, and then the tensors' bytes.

The tensors are stored in the order of their names in the header, without gaps.

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

from reshard.errors import CorruptError, PlanError
from reshard.formats.safetensors.dtypes import header_shape, safetensors_name
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.dtypes import storage_bytes

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
