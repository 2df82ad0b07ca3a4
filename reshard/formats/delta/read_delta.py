"""Opens a delta: its index, or the manifest of SkyRL, and the headers of its files. No payload is read.

The index is the subject of ``delta/index.py``. The manifest is only read::

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
import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    PlanError,
    shorten,
)
from reshard.formats.delta.index import DeltaIndex, ListedTensor, is_delta, parse_index
from reshard.formats.delta.index_values import (
    Checksum,
    can_be_id,
    checked_digest,
    damaged_index,
    is_number,
    is_text,
    payload_file,
    version_id,
    version_text,
)
from reshard.formats.limits import MAX_RANK
from reshard.formats.marks import SAFETENSORS_ENDING
from reshard.formats.names import version_of_name
from reshard.formats.safe_json import expect, expect_sizes, json_value, read_bytes
from reshard.formats.safetensors.files import INDEX_NAME
from reshard.formats.safetensors.header import (
    FileHeader,
    StoredPiece,
    header_shape,
    read_header,
    safetensors_name,
)
from reshard.geometry.dtypes import storage_bytes
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

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


PAYLOAD_BYTES = 700
"""Memory that an open delta takes for each tensor that it changes, an overestimate."""

# A number that has the digits does not begin with zeros: receivers look for one name.
_SKYRL_NAMED = re.compile(r"delta-([0-9]{8}|[1-9][0-9]{8,14})")
_WHOLE_NAME = f"model{SAFETENSORS_ENDING}"
_REMEDY = "restore the folder from a copy, or publish a full version"


class Payload(Struct, frozen=True):
    """The stored change of a delta to a tensor.

    Attributes:
        piece: the bytes of the frame in their file.
        digest: of all new bytes of the tensor.
        listed: dtype and shape of the tensor, where the delta records them for each changed tensor.
    """

    piece: StoredPiece
    digest: str
    listed: ListedTensor | None = None


class Delta(Struct, frozen=True):
    """An open delta.

    Attributes:
        payloads: of the tensors that it changes, by name.
        metadata_bytes: estimate of the memory that it keeps.
    """

    place: Location
    index: DeltaIndex
    payloads: Mapping[str, Payload]
    metadata_bytes: int

    @property
    def version(self) -> str:
        """The id of the version that it makes."""
        return self.index.version

    @property
    def base_version(self) -> str:
        """The id of the version before it."""
        return self.index.base_version


def version_of_delta(name: str) -> str | None:
    """The version that the name of a folder gives; also for the folder of a delta of SkyRL.

    >>> version_of_delta("delta-00000007")
    '000007'
    """
    found = _SKYRL_NAMED.fullmatch(name)
    named = version_of_name(name) if found is None else found[1]
    return None if named is None else version_id(named)


def is_skyrl_name(name: str) -> bool:
    """True if a folder has the name of a delta of SkyRL, which is only read."""
    return _SKYRL_NAMED.fullmatch(name) is not None


def open_delta(place: Location) -> Delta:
    """The delta in a folder, whose files may not be links out of it.

    Raises MissingError where nothing is there, IncompleteCheckpointError for a folder without an index, CorruptError where index and files
    contradict each other, FormatError where the folder is not a delta, or is one of a kind that is not read.
    """
    if not place.exists():
        raise MissingError(
            f"{place} does not exist: expected the folder of a delta, such as weight_v000007; check the path, or give a full version that is "
            "later"
        )
    place = place.view()
    found = _described(place)
    index, manifest = found.index, found.manifest
    named = version_of_delta(place.name)
    if named is not None and named != index.version:
        raise CorruptError(
            f"{found.file} is of the version {index.version}, but the folder is {place.name}; {_REMEDY}"
        )
    names = sorted({*index.weight_map.values(), *(() if manifest is None else manifest.files)})
    headers = dict(zip(names, _headers(found.file, names), strict=True))
    pieces = {(held_by, piece.name): piece for held_by, h in headers.items() for piece in h.pieces}
    payloads = {
        name: _payload(name, found, headers[held_by], pieces.pop((held_by, found.key(name)), None))
        for name, held_by in index.weight_map.items()
    }
    _refuse_others(found, headers, pieces)
    kept = found.nbytes + sum(header.nbytes for header in headers.values())
    return Delta(place, index, payloads, 2 * kept + PAYLOAD_BYTES * len(payloads))


class _Described(Struct, frozen=True):
    """The content of the file that commits a delta.

    Attributes:
        file: the index, or the manifest.
        nbytes: of that file.
        manifest: None for an index.
    """

    file: Location
    nbytes: int
    index: DeltaIndex
    manifest: Manifest | None = None

    @property
    def what(self) -> str:
        """The kind of the file, in messages."""
        return "index" if self.manifest is None else "manifest"

    def key(self, name: str) -> str:
        """The name of a tensor's payload in its file."""
        return name if self.manifest is None else self.manifest.tensors[name].key


def _described(place: Location) -> _Described:
    file = place / INDEX_NAME
    if file.exists():
        data = read_bytes(file, what="the index")
        return _Described(file, len(data), parse_index(data, str(file)))
    file = place / MANIFEST_NAME
    if file.exists():
        data = read_bytes(file, what="the manifest")
        manifest = parse_manifest(data, str(file))
        return _Described(file, len(data), manifest.index, manifest)
    if (place / _WHOLE_NAME).is_file():
        raise FormatError(
            f"{place} has {_WHOLE_NAME} and no {INDEX_NAME}, as a full version and no delta has; give it as the base, or name the folder of a delta"
        )
    if version_of_delta(place.name) is None and not _has_payloads(place):
        raise FormatError(
            f"{place} is no delta: expected a folder such as weight_v000007, with {INDEX_NAME} and the files that it names; name the folder of each "
            f"delta{_versions_text(place)}"
        )
    last = INDEX_NAME if _SKYRL_NAMED.fullmatch(place.name) is None else MANIFEST_NAME
    raise IncompleteCheckpointError(
        f"{place} has no {last}, which is written last: its writer is at work or was interrupted; wait for it, or publish the "
        "version again"
    )


def _has_payloads(place: Location) -> bool:
    entries = place.entries() if place.is_folder() else []
    return any(entry.name.endswith(SAFETENSORS_ENDING) and not entry.is_folder for entry in entries)


def _versions_text(place: Location) -> str:
    """A version in a folder of versions, in words, for the error where the folder was given in place of one."""
    names = place.folders() if place.is_folder() else []
    found = sorted(name for name in names if version_of_delta(name) is not None)
    return f" in it, such as {found[0]}" if found else ""


def holds_delta(place: Location) -> bool:
    """True if a folder has the file that commits a delta, of either layout."""
    for name, what, is_one in (
        (INDEX_NAME, "the index", is_delta),
        (MANIFEST_NAME, "the manifest", is_manifest),
    ):
        file = place / name
        if file.is_file():
            return is_one(json_value(read_bytes(file, what=what), str(file)))
    return False


def recorded_version(root: Location) -> str | None:
    """The version that a full version records in its index; None for none."""
    file = root.view() / INDEX_NAME
    if not file.exists():
        return None
    document = json_value(read_bytes(file, what="the index"), str(file))
    metadata = document.get("metadata") if isinstance(document, dict) else None
    text = metadata.get("version") if isinstance(metadata, dict) else None
    return version_id(text) if isinstance(text, str) and can_be_id(text) else None


def anchor_version(root: Location, known: Collection[str] = ()) -> str | None:
    """The version that a full version records in its index, or that its folder's name gives; None for none.

    ``known``: the versions that deltas name. An id that is no number counts only where it is one of these: other programs may record a version of
    their own, and any folder has a name.

    Raises CorruptError where index and name differ: receivers go by either.
    """
    recorded, named = recorded_version(root), version_of_name(root.name)
    if recorded is None or not (is_number(recorded) or recorded in known):
        return root.name if named is None and root.name in known else named
    if named not in (None, recorded):
        raise CorruptError(
            f"{root.view() / INDEX_NAME} is of the version {recorded}, but the folder is {root.name}; rename the folder back, or make the version "
            "again"
        )
    return recorded


def _headers(file: Location, names: list[str]) -> list[FileHeader]:
    return list(each_at_once(file.store, lambda name: _header(file, name), names))


def _header(named_by: Location, name: str) -> FileHeader:
    file = named_by.parent / name
    if file.status() is None:
        raise MissingError(f"{named_by} names the file {name!r}, which is missing; {_REMEDY}")
    return read_header(file)


def _payload(
    name: str, found: _Described, header: FileHeader, piece: StoredPiece | None
) -> Payload:
    where = f"{header.path}: the payload of {name[:200]!r}"
    if piece is None:
        raise CorruptError(
            f"{found.file} says that {name[:200]!r} is in {found.index.weight_map[name]!r}, which does not hold it; {_REMEDY}"
        )
    if piece.dtype != "uint8" or len(piece.shape) != 1:
        raise FormatError(
            f"{where} should be U8 with one dimension, but is {piece.dtype} of shape {list(piece.shape)}; {_REMEDY}"
        )
    if found.manifest is not None:
        tensor = found.manifest.tensors[name]
        if piece.nbytes != tensor.stored_bytes:
            raise CorruptError(
                f"{where} has {piece.nbytes} bytes, but the manifest says {tensor.stored_bytes}; {_REMEDY}"
            )
        return Payload(piece, tensor.listed.digest, tensor.listed)
    if name not in header.metadata:
        raise CorruptError(f"{where} has no checksum in the metadata of its file; {_REMEDY}")
    digest = checked_digest(header.metadata[name], found.index.checksum, "its checksum", where)
    listed = None if found.index.tensors is None else found.index.tensors[name].digest
    if listed not in (None, digest):
        raise CorruptError(
            f"{where} has the checksum {digest}, but the index lists {listed}: they are of two versions, or one of them is damaged; {_REMEDY}"
        )
    return Payload(piece, digest)


def _refuse_others(
    found: _Described,
    headers: Mapping[str, FileHeader],
    others: Mapping[tuple[str, str], StoredPiece],
) -> None:
    """Refuses files that hold other tensors than the index commits."""
    for held_by, name in others:
        raise CorruptError(
            f"{headers[held_by].path} holds {name[:200]!r}, which the {found.what} does not list there; {_REMEDY}"
        )
