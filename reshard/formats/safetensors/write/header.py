"""The header of a safetensors file: 8 bytes of its length, JSON, and then the tensors' bytes.

The tensors are stored in the order of their names in the header, without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.safetensors.dtypes import header_shape, safetensors_name
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
