"""The index of a delta: ``model.safetensors.index.json`` with ``delta_encoding`` in its metadata.

::

    weight_v000007/model-00000-of-00002.safetensors ...   one U8 tensor for each that changed: a zstd frame
    weight_v000007/model.safetensors.index.json           written last

    {"metadata": {"version": "000007", "base_version": "000006", "delta_encoding": "xor", "compression_format": "zstd",
                  "checksum_format": "xxh3-128"},
     "weight_map": {NAME: FILE}}

ModelExpress has the same with ids of versions that are any text (``index_values.py``), always ``xor`` and ``adler32``; its receiver refuses an index
with another member in its metadata.

The metadata of a file gives the checksum of all new bytes of each of its tensors. A payload is, once it is decompressed::

    xor        new ^ old, all bytes of the tensor
    overwrite  u32 count, count u32 positions of bytes, ascending, then the count new bytes; little-endian

This project adds to the metadata of the index (see docs/decisions/0066-deltas.md)::

    "base_digest", "target_digest"   of all tensors before and after: ``tensors_digest``
    "base_identity", "target_identity"   the roots of their identities, where the weights before and after record one
    "total_size"                     bytes of all tensors
    "tensors"                        {NAME: [dtype as safetensors names it, shape, checksum of the new bytes]}, all of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any, cast, get_args

from msgspec import Struct

from reshard.arguments import DeltaEncoding, DeltaReceiver
from reshard.errors import FormatError, shorten
from reshard.formats.delta.index_values import (
    CHECKSUMS,
    Checksum,
    by_name,
    checked_digest,
    checked_version,
    checksum_of,
    damaged_index,
    is_number,
    payload_file,
)
from reshard.formats.limits import MAX_RANK
from reshard.formats.safe_json import expect, expect_sizes, json_value
from reshard.formats.safetensors.header import dtype_of, element_shape
from reshard.geometry.dtypes import storage_bytes

COMPRESSION = "zstd"

_ROOT = re.compile(r"[0-9a-f]{64}")


class DeltaIndex(Struct, frozen=True):
    """The content of an index.

    Attributes:
        weight_map: the file of each tensor that changed.
        base_digest, target_digest, total_size: of all tensors; None where the writer records none of these.
        tensors: all tensors of the version, by name; None where the writer lists none.
        changed: the number of elements that differ, of each tensor that changed; None where the writer does not count them.
        base_identity, target_identity: roots of the identities before and after; None where none is recorded.
    """

    version: str
    base_version: str
    encoding: DeltaEncoding
    checksum: Checksum
    weight_map: Mapping[str, str]
    base_digest: str | None = None
    target_digest: str | None = None
    total_size: int | None = None
    tensors: Mapping[str, ListedTensor] | None = None
    changed: Mapping[str, int] | None = None
    base_identity: str | None = None
    target_identity: str | None = None


def is_delta(document: Any) -> bool:
    """True if the JSON of an index is of a delta."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return isinstance(metadata, dict) and "delta_encoding" in metadata


def render_index(index: DeltaIndex, receiver: DeltaReceiver = "pull_weights") -> bytes:
    """The text of an index; the same bytes for the same content."""
    metadata: dict[str, Any] = {
        "version": index.version,
        "base_version": index.base_version,
        "delta_encoding": index.encoding,
        "compression_format": COMPRESSION,
        "checksum_format": index.checksum,
    }
    if receiver == "pull_weights":
        metadata |= _added(index)
    document = {"metadata": metadata, "weight_map": dict(index.weight_map)}
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()


def _added(index: DeltaIndex) -> dict[str, Any]:
    """The members of this project."""
    added: dict[str, Any] = {
        "producer": "reshard",
        "base_digest": index.base_digest,
        "target_digest": index.target_digest,
        "base_identity": index.base_identity,
        "target_identity": index.target_identity,
        "total_size": index.total_size,
    }
    added = {key: value for key, value in added.items() if value is not None}
    if index.tensors is not None:
        added["tensors"] = {
            name: [one.dtype, list(one.shape), one.digest] for name, one in index.tensors.items()
        }
    if index.changed is not None:
        added["changed"] = dict(index.changed)
    return added


def parse_index(data: bytes, where: str) -> DeltaIndex:
    """An index from its text.

    Raises CorruptError for damage; FormatError for the index of a full version, and for an encoding, a compression or a checksum that is
    not known.
    """
    document = expect(json_value(data, where), dict, "the index", where)
    if not is_delta(document):
        raise FormatError(
            f"{where} has no delta_encoding in its metadata, so that its folder is a full version, not a delta; give it as the base, or "
            "name the folder of a delta"
        )
    metadata = document["metadata"]
    checksum = cast("Checksum", _choice(metadata, "checksum_format", CHECKSUMS, where))
    _choice(metadata, "compression_format", (COMPRESSION,), where)
    weight_map = by_name(document.get("weight_map"), "weight_map", where)
    found = DeltaIndex(
        checked_version(metadata.get("version"), "metadata.version", where),
        checked_version(metadata.get("base_version"), "metadata.base_version", where),
        cast("DeltaEncoding", _choice(metadata, "delta_encoding", get_args(DeltaEncoding), where)),
        checksum,
        {
            n: payload_file(file, f"the file of {n[:200]!r}", where)
            for n, file in weight_map.items()
        },
        _digest(metadata, "base_digest", checksum, where),
        _digest(metadata, "target_digest", checksum, where),
        _size(metadata, where),
        listed_tensors(metadata["tensors"], checksum, where) if "tensors" in metadata else None,
        _changed(metadata, where),
        _root(metadata, "base_identity", where),
        _root(metadata, "target_identity", where),
    )
    if not _is_after(found.version, found.base_version):
        raise damaged_index(
            where,
            f"its version {found.version} should be later than its base_version {found.base_version}",
        )
    _check_list(found, where)
    if found.changed is not None and found.changed.keys() != found.weight_map.keys():
        raise damaged_index(
            where,
            "metadata.changed should count the elements of what weight_map names, and of nothing else",
        )
    return found


def _choice(metadata: Mapping[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    found = expect(metadata.get(key), str, f"metadata.{key}", where)
    if found not in choices:
        raise FormatError(
            f"{where}: metadata.{key} is {shorten(found)}; expected {' or '.join(choices)}; a newer program may have written it: publish a "
            "full version, or choose another encoding there"
        )
    return found


def _is_after(version: str, base: str) -> bool:
    if is_number(version) and is_number(base):
        return int(version) > int(base)
    return version != base


def _digest(metadata: Mapping[str, Any], key: str, checksum: Checksum, where: str) -> str | None:
    if key not in metadata:
        return None
    return checked_digest(metadata[key], checksum, f"metadata.{key}", where)


def _root(metadata: Mapping[str, Any], key: str, where: str) -> str | None:
    if key not in metadata:
        return None
    found = expect(metadata[key], str, f"metadata.{key}", where)
    if not _ROOT.fullmatch(found):
        raise damaged_index(
            where,
            f"metadata.{key} is {shorten(found)}; expected 64 hex digits, the root of an identity",
        )
    return found


def _size(metadata: Mapping[str, Any], where: str) -> int | None:
    if "total_size" not in metadata:
        return None
    (found,) = expect_sizes([metadata["total_size"]], "metadata.total_size", where)
    return found


def _changed(metadata: Mapping[str, Any], where: str) -> dict[str, int] | None:
    if "changed" not in metadata:
        return None
    found = expect(metadata["changed"], dict, "metadata.changed", where)
    counts = expect_sizes(list(found.values()), "metadata.changed", where)
    return dict(zip(found, counts, strict=True))


def _check_list(index: DeltaIndex, where: str) -> None:
    """The list of all tensors must give the target's digest, and have those that changed."""
    if index.tensors is None:
        return
    check_listed(index.tensors, index.total_size, index.changed, where)
    if index.target_digest is not None:
        found = tensors_digest(index.checksum, index.tensors)
        if found != index.target_digest:
            raise damaged_index(
                where, f"its target_digest is {index.target_digest}, but its tensors give {found}"
            )
    missing = next((name for name in index.weight_map if name not in index.tensors), None)
    if missing is not None:
        raise damaged_index(
            where, f"weight_map names {missing[:200]!r}, which is not among its tensors"
        )


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
