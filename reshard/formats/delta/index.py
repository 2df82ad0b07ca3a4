"""The index of a delta: ``model.safetensors.index.json`` with ``delta_encoding`` in its metadata.

::

    weight_v000007/model-00000-of-00002.safetensors ...   one U8 tensor for each that changed: a zstd frame
    weight_v000007/model.safetensors.index.json           written last

    {"metadata": {"version": "000007", "base_version": "000006", "delta_encoding": "xor", "compression_format": "zstd",
                  "checksum_format": "xxh3-128"},
     "weight_map": {NAME: FILE}}

The metadata of a file gives the checksum of all new bytes of each of its tensors. A payload is, once it is decompressed::

    xor        new ^ old, all bytes of the tensor
    overwrite  u32 count, count u32 positions of bytes, ascending, then the count new bytes; little-endian

This project adds an encoding, whose name other receivers do not know::

    xor-shuffled   as xor; of elements of two bytes, each 64 KiB have the low bytes of all elements, then the high bytes

It adds to the metadata of the index (see docs/decisions/0069-deltas.md)::

    "base_digest", "target_digest"   of all tensors before and after: ``tensors_digest``
    "base_identity", "target_identity"   the roots of their identities, where the weights before and after record one
    "total_size"                     bytes of all tensors
    "tensors"                        {NAME: [dtype as safetensors names it, shape, checksum of the new bytes]}, all of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.delta.checksums import CHECKSUMS, HEX_DIGITS, Checksum, checksum_of
from reshard.formats.json.safe_json import expect, expect_sizes, json_value, shorten

Encoded = Literal["xor", "overwrite", "xor-shuffled"]

ENCODINGS: tuple[Encoded, ...] = get_args(Encoded)

COMPRESSION = "zstd"

VERSION_DIGITS = 6

_VERSION = re.compile(r"[0-9]{1,15}")
_HEX = re.compile(r"[0-9a-f]+")
_ROOT = re.compile(r"[0-9a-f]{64}")
_REMEDY = "restore the folder from a copy, or publish a full version"


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


class DeltaIndex(Struct, frozen=True):
    """What an index says.

    Attributes:
        weight_map: the file of each tensor that changed.
        base_digest, target_digest, total_size: of all tensors; None where the writer records none of these.
        tensors: all tensors of the version, by name; None where the writer lists none.
        changed: how many elements differ, of each tensor that changed; None where the writer does not count them.
        base_identity, target_identity: roots of the identities before and after; None where none is recorded.
    """

    version: int
    base_version: int
    encoding: Encoded
    checksum: Checksum
    weight_map: Mapping[str, str]
    base_digest: str | None = None
    target_digest: str | None = None
    total_size: int | None = None
    tensors: Mapping[str, ListedTensor] | None = None
    changed: Mapping[str, int] | None = None
    base_identity: str | None = None
    target_identity: str | None = None


def version_text(version: int) -> str:
    """A version as folders and indexes have it.

    >>> version_text(7)
    '000007'
    """
    return f"{version:0{VERSION_DIGITS}d}"


def is_delta(document: Any) -> bool:
    """Whether the JSON of an index is of a delta."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return isinstance(metadata, dict) and "delta_encoding" in metadata


def tensors_digest(checksum: Checksum, tensors: Mapping[str, ListedTensor]) -> str:
    """The digest of a list of tensors: of a line of JSON for each, ``[name, dtype, shape, digest]``, in the order of their UTF-8."""
    lines = (
        json.dumps([n, t.dtype, list(t.shape), t.digest], separators=(",", ":"), ensure_ascii=False)
        for n, t in sorted(tensors.items(), key=lambda item: item[0].encode())
    )
    return checksum_of(checksum, "".join(f"{line}\n" for line in lines).encode())


def render_index(index: DeltaIndex) -> bytes:
    """The text of an index; the same bytes for the same content."""
    metadata: dict[str, Any] = {
        "version": version_text(index.version),
        "base_version": version_text(index.base_version),
        "delta_encoding": index.encoding,
        "compression_format": COMPRESSION,
        "checksum_format": index.checksum,
        "producer": "reshard",
    }
    added = {
        "base_digest": index.base_digest,
        "target_digest": index.target_digest,
        "base_identity": index.base_identity,
        "target_identity": index.target_identity,
        "total_size": index.total_size,
    }
    metadata |= {key: value for key, value in added.items() if value is not None}
    if index.tensors is not None:
        metadata["tensors"] = {
            name: [one.dtype, list(one.shape), one.digest] for name, one in index.tensors.items()
        }
    if index.changed is not None:
        metadata["changed"] = dict(index.changed)
    document = {"metadata": metadata, "weight_map": dict(index.weight_map)}
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()


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
    weight_map = _by_name(document.get("weight_map"), "weight_map", where)
    found = DeltaIndex(
        _version(metadata, "version", where),
        _version(metadata, "base_version", where),
        cast("Encoded", _choice(metadata, "delta_encoding", ENCODINGS, where)),
        checksum,
        {
            n: payload_file(file, f"the file of {n[:200]!r}", where)
            for n, file in weight_map.items()
        },
        _digest(metadata, "base_digest", checksum, where),
        _digest(metadata, "target_digest", checksum, where),
        _size(metadata, where),
        _tensors(metadata, checksum, where),
        _changed(metadata, where),
        _root(metadata, "base_identity", where),
        _root(metadata, "target_identity", where),
    )
    if found.base_version >= found.version:
        raise damaged_index(
            where,
            f"its version {version_text(found.version)} should be later than its base_version {version_text(found.base_version)}",
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


def _version(metadata: Mapping[str, Any], key: str, where: str) -> int:
    found = expect(metadata.get(key), str, f"metadata.{key}", where)
    if not _VERSION.fullmatch(found):
        raise damaged_index(
            where, f"metadata.{key} is {shorten(found)}; expected digits, such as 000007"
        )
    return int(found)


def payload_file(file: Any, what: str, where: str) -> str:
    """The name of a file of a delta; CorruptError, naming ``what``, for anything but a name in its folder."""
    found = expect(file, str, what, where)
    if found in ("", ".", "..") or any(c in found for c in "/\\\0") or not is_text(found):
        raise damaged_index(
            where, f"{what} is {found[:200]!r}; expected the name of a file in its folder"
        )
    return found


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


def checked_digest(value: Any, checksum: Checksum, what: str, where: str) -> str:
    """A checksum from a file; CorruptError, naming ``what``, for anything else."""
    found = expect(value, str, what, where)
    if len(found) != HEX_DIGITS[checksum] or not _HEX.fullmatch(found):
        raise damaged_index(
            where,
            f"{what} is {shorten(found)}; expected {HEX_DIGITS[checksum]} hex digits of {checksum}",
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


def _tensors(
    metadata: Mapping[str, Any], checksum: Checksum, where: str
) -> dict[str, ListedTensor] | None:
    if "tensors" not in metadata:
        return None
    listed = _by_name(metadata["tensors"], "metadata.tensors", where)
    return {name: _listed(name, entry, checksum, where) for name, entry in listed.items()}


def _by_name(value: Any, what: str, where: str) -> dict[str, Any]:
    """An object of the index whose keys are names of tensors."""
    found: dict[str, Any] = expect(value, dict, what, where)
    for name in found:
        if not is_text(name):
            raise damaged_index(where, f"the name {name[:80]!r} in {what} is no text")
    return found


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold it: JSON may have halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(name: str, entry: Any, checksum: Checksum, where: str) -> ListedTensor:
    what = f"metadata.tensors[{name[:80]!r}]"
    found = expect(entry, list, what, where)
    if len(found) != 3:
        raise damaged_index(
            where, f"{what} should be dtype, shape and checksum, but is {shorten(found)}"
        )
    return ListedTensor(
        expect(found[0], str, f"the dtype of {what}", where),
        expect_sizes(found[1], f"the shape of {what}", where),
        checked_digest(found[2], checksum, f"the checksum of {what}", where),
    )


def _check_list(index: DeltaIndex, where: str) -> None:
    """The list of all tensors must give the target's digest, and have those that changed."""
    if index.tensors is None:
        return
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


def damaged_index(where: str, what: str) -> CorruptError:
    """The error of an index or a manifest that contradicts itself."""
    return CorruptError(f"{where}: {what}; {_REMEDY}")
