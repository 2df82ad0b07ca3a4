"""Opens a delta: its index and the headers of its files. No payload is read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, IncompleteCheckpointError, MissingError
from reshard.formats.delta.index import (
    DeltaIndex,
    checked_digest,
    parse_index,
    version_text,
)
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.safetensors.header import FileHeader, StoredPiece, read_header
from reshard.formats.safetensors.model_name import INDEX_NAME
from reshard.storage.location import Location
from reshard.storage.parallel_calls import each_at_once

PAYLOAD_BYTES = 700
"""Memory that an open delta takes for each tensor that it changes, an overestimate."""

_NAMED = re.compile(r"weight_v([0-9]{6,15})")
_REMEDY = "restore the folder from a copy, or publish a full version"


class Payload(Struct, frozen=True):
    """What a delta stores of a tensor.

    Attributes:
        piece: the bytes of the frame in their file.
        digest: of all new bytes of the tensor.
    """

    piece: StoredPiece
    digest: str


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
        """As its folder has it."""
        return version_text(self.index.version)

    @property
    def base_version(self) -> str:
        """The version before it, as its folder has it."""
        return version_text(self.index.base_version)


def version_of_name(name: str) -> int | None:
    """The version that the name of a folder gives; None for another name.

    >>> version_of_name("weight_v000007")
    7
    """
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[1])


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
    file = place / INDEX_NAME
    if not file.exists():
        raise IncompleteCheckpointError(
            f"{place} has no {INDEX_NAME}, which is written last: its writer is at work or was interrupted; wait for it, or publish the "
            "version again"
        )
    data = read_bytes(file, what="the index")
    index = parse_index(data, str(file))
    named = version_of_name(place.name)
    if named is not None and named != index.version:
        raise CorruptError(
            f"{file} is of the version {version_text(index.version)}, but the folder is {place.name}; {_REMEDY}"
        )
    names = sorted(set(index.weight_map.values()))
    headers = dict(zip(names, _headers(place, names), strict=True))
    pieces = {(held_by, piece.name): piece for held_by, h in headers.items() for piece in h.pieces}
    payloads = {
        name: _payload(name, index, headers[held_by], pieces.get((held_by, name)), file)
        for name, held_by in index.weight_map.items()
    }
    _refuse_others(index, headers)
    kept = len(data) + sum(header.nbytes for header in headers.values())
    return Delta(place, index, payloads, 2 * kept + PAYLOAD_BYTES * len(payloads))


def anchor_version(root: Location) -> int | None:
    """The version that a full version records in its index, or that its folder's name gives; None for none."""
    file = root.view() / INDEX_NAME
    named = version_of_name(root.name)
    if not file.exists():
        return named
    document = json_value(read_bytes(file, what="the index"), str(file))
    metadata = document.get("metadata") if isinstance(document, dict) else None
    text = metadata.get("version") if isinstance(metadata, dict) else None
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    return named


def _headers(place: Location, names: list[str]) -> list[FileHeader]:
    return list(each_at_once(place.store, lambda name: _header(place, name), names))


def _header(place: Location, name: str) -> FileHeader:
    file = place / name
    if file.status() is None:
        raise MissingError(
            f"{place / INDEX_NAME} names the file {name!r}, which is missing; {_REMEDY}"
        )
    return read_header(file)


def _payload(
    name: str, index: DeltaIndex, header: FileHeader, piece: StoredPiece | None, file: Location
) -> Payload:
    where = f"{header.path}: the payload of {name[:200]!r}"
    if piece is None:
        raise CorruptError(
            f"{file} says that {name[:200]!r} is in {index.weight_map[name]!r}, which does not hold it; {_REMEDY}"
        )
    if piece.dtype != "uint8" or len(piece.shape) != 1:
        raise FormatError(
            f"{where} should be U8 with one dimension, but is {piece.dtype} of shape {list(piece.shape)}; {_REMEDY}"
        )
    if name not in header.metadata:
        raise CorruptError(f"{where} has no checksum in the metadata of its file; {_REMEDY}")
    return Payload(
        piece, checked_digest(header.metadata[name], index.checksum, "its checksum", where)
    )


def _refuse_others(index: DeltaIndex, headers: Mapping[str, FileHeader]) -> None:
    """The index is what was committed: a file holds what it lists and nothing else."""
    for file, header in headers.items():
        for piece in header.pieces:
            if index.weight_map.get(piece.name) != file:
                raise CorruptError(
                    f"{header.path} holds {piece.name[:200]!r}, which the index does not list there; {_REMEDY}"
                )
