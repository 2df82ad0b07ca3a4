"""The list of all tensors of a version, which this project adds to the index of a delta.

::

    "tensors": {NAME: [dtype as safetensors names it, shape, checksum of the new bytes]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from msgspec import Struct

from reshard.errors import FormatError, shorten
from reshard.formats.delta.checksums import Checksum, checksum_of
from reshard.formats.delta.index_values import by_name, checked_digest, damaged_index
from reshard.formats.json.safe_json import expect, expect_sizes
from reshard.formats.limits import MAX_RANK
from reshard.formats.safetensors.dtypes import dtype_of, element_shape
from reshard.geometry.dtypes import storage_bytes

_MOST_BYTES = 1 << 62


class ListedTensor(Struct, frozen=True):
    """A tensor of a version.

    Attributes:
        dtype: as safetensors names it.
        shape: as a header has it.
        digest: of its bytes, hex digits.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str

    def elements(self, where: str) -> tuple[str, tuple[int, ...]]:
        """Its dtype and its shape in elements; a packed element holds several values. FormatError, naming ``where``, for others."""
        dtype = dtype_of(self.dtype, where)
        return dtype, element_shape(dtype, self.shape, where)


def tensors_digest(checksum: Checksum, tensors: Mapping[str, ListedTensor]) -> str:
    """The digest of a list of tensors: of a line of JSON for each, ``[name, dtype, shape, digest]``, in the order of their UTF-8."""
    lines = (
        json.dumps([n, t.dtype, list(t.shape), t.digest], separators=(",", ":"), ensure_ascii=False)
        for n, t in sorted(tensors.items(), key=lambda item: item[0].encode())
    )
    return checksum_of(checksum, "".join(f"{line}\n" for line in lines).encode())


def listed_tensors(value: Any, checksum: Checksum, where: str) -> dict[str, ListedTensor]:
    """The list as an index has it.

    Raises CorruptError for damage, FormatError for a tensor that safetensors files do not hold.
    """
    listed = by_name(value, "metadata.tensors", where)
    return {name: _listed(name, entry, checksum, where) for name, entry in listed.items()}


def _listed(name: str, entry: Any, checksum: Checksum, where: str) -> ListedTensor:
    what = f"metadata.tensors[{name[:80]!r}]"
    found = expect(entry, list, what, where)
    if len(found) != 3:
        raise damaged_index(
            where, f"{what} should be dtype, shape and checksum, but is {shorten(found)}"
        )
    shape = expect_sizes(found[1], f"the shape of {what}", where)
    if len(shape) > MAX_RANK:
        raise FormatError(
            f"{where}: the shape of {what} has {len(shape)} dimensions; expected {MAX_RANK} at most"
        )
    return ListedTensor(
        expect(found[0], str, f"the dtype of {what}", where),
        shape,
        checked_digest(found[2], checksum, f"the checksum of {what}", where),
    )


def check_listed(
    tensors: Mapping[str, ListedTensor],
    total_size: int | None,
    changed: Mapping[str, int] | None,
    where: str,
) -> None:
    """Raises CorruptError where the tensors have another size than the version, or fewer elements than changed."""
    total = 0
    for name, one in tensors.items():
        dtype, shape = one.elements(f"{where}: metadata.tensors[{name[:80]!r}]")
        elements = prod(shape)
        total += elements * storage_bytes(dtype)
        if total > _MOST_BYTES:
            raise damaged_index(
                where, f"its tensors up to {name[:200]!r} have more than 2^62 bytes"
            )
        if changed is not None and changed.get(name, 0) > elements:
            raise damaged_index(
                where,
                f"{changed[name]} elements of {name[:200]!r} should have changed, but it has {elements}",
            )
    if total_size not in (None, total):
        raise damaged_index(
            where, f"its total_size is {total_size}, but its tensors have {total} bytes"
        )
