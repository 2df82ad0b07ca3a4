"""Opens a delta: its index, or the manifest of SkyRL, and the headers of its files. No payload is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, IncompleteCheckpointError, MissingError
from reshard.formats.delta.index import DeltaIndex, ListedTensor, is_delta, parse_index
from reshard.formats.delta.index_values import can_be_id, checked_digest, is_number, version_id
from reshard.formats.delta.manifest import MANIFEST_NAME, Manifest, is_manifest, parse_manifest
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.safetensors.files import ENDING, INDEX_NAME
from reshard.formats.safetensors.header import FileHeader, StoredPiece, read_header
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

PAYLOAD_BYTES = 700
"""Memory that an open delta takes for each tensor that it changes, an overestimate."""

# A number that has the digits does not begin with zeros: receivers look for one name.
_NAMED = re.compile(r"weight_v([0-9]{6}|[1-9][0-9]{6,14})")
_SKYRL_NAMED = re.compile(r"delta-([0-9]{8}|[1-9][0-9]{8,14})")
_WHOLE_NAME = f"model{ENDING}"
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


def version_of_name(name: str) -> str | None:
    """The numbered version that the name of a folder gives; None for another name.

    >>> version_of_name("weight_v000007")
    '000007'
    """
    found = _NAMED.fullmatch(name)
    return None if found is None else found[1]


def version_of_delta(name: str) -> str | None:
    """The same; also for the folder of a delta of SkyRL.

    >>> version_of_delta("delta-00000007")
    '000007'
    """
    found = _NAMED.fullmatch(name) or _SKYRL_NAMED.fullmatch(name)
    return None if found is None else version_id(found[1])


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
    return any(entry.name.endswith(ENDING) and not entry.is_folder for entry in entries)


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
