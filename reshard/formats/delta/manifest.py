"""The manifest of a delta of SkyRL, which is only read.

::

    delta-00000007/delta-rank00000-file000000.safetensors   one U8 tensor for each that changed: a zstd frame of new ^ old
    delta-00000007/manifest.json                            written last

    {"version": 7, "base_version": 6, "total_uncompressed_num_bytes": N, "total_compressed_num_bytes": N, "payload_files": [FILE],
     "tensors": [{"name": NAME, "dtype": "bfloat16", "shape": [N], "uncompressed_num_bytes": N, "compressed_num_bytes": N,
                  "payload_file": FILE, "payload_key": KEY, "checksum": HEX, "checksum_algorithm": "xxh3-128"}]}

Dtypes are torch's, with or without ``torch.`` before them. The checksum is of all new bytes of the tensor. Tensors that did not change are not
named, and their checksums are nowhere. SkyRL publishes no full versions: the version 0 is the model with which its run began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import FormatError, PlanError, shorten
from reshard.formats.delta.index import DeltaIndex, ListedTensor
from reshard.formats.delta.index_values import (
    Checksum,
    checked_digest,
    damaged_index,
    is_text,
    payload_file,
    version_text,
)
from reshard.formats.json.safe_json import expect, expect_sizes, json_value
from reshard.formats.limits import MAX_RANK
from reshard.formats.safetensors.header import header_shape, safetensors_name
from reshard.geometry.dtypes import storage_bytes

MANIFEST_NAME = "manifest.json"

CHECKSUM: Checksum = "xxh3-128"

_MOST_VERSION = 10**15
_PREFIX = "torch."


class ManifestTensor(Struct, frozen=True):
    """A tensor that changed.

    Attributes:
        listed: as the header of a full version has it, with the checksum of its new bytes.
        key: the name of its payload in the file.
        nbytes: of all of it.
        stored_bytes: of its payload.
    """

    listed: ListedTensor
    file: str
    key: str
    nbytes: int
    stored_bytes: int


class Manifest(Struct, frozen=True):
    """The content of a manifest.

    Attributes:
        index: the same content as an index of a delta.
        tensors: those that changed, by name.
        files: the names of the files that hold payloads.
    """

    index: DeltaIndex
    tensors: Mapping[str, ManifestTensor]
    files: tuple[str, ...]


def is_manifest(document: Any) -> bool:
    """True if JSON is a manifest of SkyRL; other programs have files of that name, too."""
    return isinstance(document, dict) and {"base_version", "payload_files"} <= document.keys()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """A manifest from its text.

    Raises CorruptError for damage, FormatError for a checksum or a dtype that is not known.
    """
    document = expect(json_value(data, where), dict, "the manifest", where)
    version, base = (_number(document, key, "", where) for key in ("version", "base_version"))
    if version >= _MOST_VERSION:
        raise damaged_index(
            where, f"its version is {version}; expected a number below {_MOST_VERSION}"
        )
    if base >= version:
        raise damaged_index(
            where, f"its version {version} should be later than its base_version {base}"
        )
    listed = expect(document.get("payload_files"), list, "payload_files", where)
    files = tuple(payload_file(file, "an entry of payload_files", where) for file in listed)
    if len(set(files)) < len(files):
        raise damaged_index(where, "payload_files names a file twice")
    tensors: dict[str, ManifestTensor] = {}
    for entry in expect(document.get("tensors"), list, "tensors", where):
        name, tensor = _tensor(expect(entry, dict, "an entry of tensors", where), where)
        if name in tensors:
            raise damaged_index(where, f"{name[:200]!r} is there twice")
        tensors[name] = tensor
    _check_places(tensors, files, where)
    _check_total(
        document, "total_uncompressed_num_bytes", sum(t.nbytes for t in tensors.values()), where
    )
    _check_total(
        document, "total_compressed_num_bytes", sum(t.stored_bytes for t in tensors.values()), where
    )
    weight_map = {name: tensor.file for name, tensor in tensors.items()}
    index = DeltaIndex(version_text(version), version_text(base), "xor", CHECKSUM, weight_map)
    return Manifest(index, tensors, files)


def _number(entry: Mapping[str, Any], key: str, of: str, where: str) -> int:
    (found,) = expect_sizes([entry.get(key)], f"{key}{of}", where)
    return found


def _tensor(entry: Mapping[str, Any], where: str) -> tuple[str, ManifestTensor]:
    name = expect(entry.get("name"), str, "the name of a tensor", where)
    if not is_text(name):
        raise damaged_index(where, f"the name {name[:80]!r} of a tensor is no text")
    of = f" of {name[:200]!r}"
    dtype = _dtype(expect(entry.get("dtype"), str, f"dtype{of}", where), of, where)
    shape = expect_sizes(entry.get("shape"), f"shape{of}", where)
    if len(shape) > MAX_RANK:
        raise FormatError(
            f"{where}: shape{of} has {len(shape)} dimensions; expected {MAX_RANK} at most"
        )
    nbytes = _number(entry, "uncompressed_num_bytes", of, where)
    if nbytes != math.prod(shape) * storage_bytes(dtype):
        raise damaged_index(
            where,
            f"uncompressed_num_bytes{of} is {nbytes}, but {dtype} of shape {shorten(list(shape))} has "
            f"{math.prod(shape) * storage_bytes(dtype)} bytes",
        )
    algorithm = expect(
        entry.get("checksum_algorithm", CHECKSUM), str, f"checksum_algorithm{of}", where
    )
    if algorithm != CHECKSUM:
        raise FormatError(
            f"{where}: checksum_algorithm{of} is {shorten(algorithm)}; expected {CHECKSUM}; another version of SkyRL may have written it"
        )
    digest = checked_digest(entry.get("checksum"), CHECKSUM, f"checksum{of}", where)
    return name, ManifestTensor(
        ListedTensor(safetensors_name(dtype, name), header_shape(dtype, shape), digest),
        payload_file(entry.get("payload_file"), f"payload_file{of}", where),
        expect(entry.get("payload_key"), str, f"payload_key{of}", where),
        nbytes,
        _number(entry, "compressed_num_bytes", of, where),
    )


def _dtype(named: str, of: str, where: str) -> str:
    dtype = named.removeprefix(_PREFIX)
    try:
        safetensors_name(dtype, "")
    except PlanError:
        raise FormatError(
            f"{where}: dtype{of} is {shorten(named)}; expected a dtype of torch that safetensors files have, such as bfloat16"
        ) from None
    return dtype


def _check_places(
    tensors: Mapping[str, ManifestTensor], files: tuple[str, ...], where: str
) -> None:
    """Every payload is in a listed file, and of one tensor."""
    listed, taken = frozenset(files), dict[tuple[str, str], str]()
    for name, tensor in tensors.items():
        if tensor.file not in listed:
            raise damaged_index(
                where,
                f"payload_file of {name[:200]!r} is {tensor.file[:200]!r}, which payload_files does not name",
            )
        other = taken.setdefault((tensor.file, tensor.key), name)
        if other != name:
            raise damaged_index(where, f"{other[:200]!r} and {name[:200]!r} have one payload")


def _check_total(document: Mapping[str, Any], key: str, found: int, where: str) -> None:
    total = _number(document, key, "", where)
    if total != found:
        raise damaged_index(where, f"{key} is {total}, but that of its tensors together is {found}")
