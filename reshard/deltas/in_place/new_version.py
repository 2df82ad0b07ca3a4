"""What a folder of weights becomes beside its weights: its index says the version, records that do not fit any more go, or are written anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.deltas.in_place.record_changes import RecordedTensor, crcs_of
from reshard.deltas.in_place.redo_journal import RedoPlan
from reshard.errors import FormatError
from reshard.formats.base import Reader
from reshard.formats.delta.read_delta import anchor_version
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.safetensors.files import files_of
from reshard.formats.safetensors.header import read_header
from reshard.formats.safetensors.model_name import INDEX_NAME, is_index
from reshard.formats.safetensors.write.header import RECORD
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME, SliceFile, digest_of, render_slices
from reshard.storage.location import Location


def changing_files(root: Location, unlisted: Unlisted) -> tuple[str, ...]:
    """The index, if there is one, and the files of weights.

    Raises FormatError for a file that records the digests of its own tensors in its header.
    """
    found = files_of(root, unlisted)
    held = (*found.files, *(found.unlisted if unlisted == "include" else ()))
    if len(held) == 1 and RECORD in read_header(held[0]).metadata:
        raise FormatError(
            f"{held[0]} records the digests of its tensors in its header, which would not fit any more; apply the deltas to a "
            "target of its own, a folder, and change that in place later"
        )
    index = () if found.index is None else (found.index.file.name,)
    return (*index, *sorted(file.name for file in held))


def new_version(
    reader: Reader,
    root: Location,
    files: Sequence[str],
    version: str,
    found: Sequence[RecordedTensor],
    warnings: Sequence[str],
) -> RedoPlan:
    """What the folder becomes, which has these files (``changing_files``) and of which this was found."""
    index = next(filter(is_index, files), None)
    document = _index_of(reader, root, files) if index is None else _index_in(root / index)
    text = _with_version(document, version)
    record = read_slices(root)
    written = {INDEX_NAME if index is None else index: text}
    if record is not None:
        written = {FILE_NAME: _record_text(record, written, found), **written}
    stale = (entry.name for entry in root.entries() if entry.name in OF_RECORDS)
    redone = tuple(one.redo for one in found if one.redo is not None)
    return RedoPlan(
        version,
        anchor_version(root),
        tuple(files),
        tuple(name for name in stale if name not in written),
        written,
        redone,
        len(reader.tensors),
        tuple(warnings),
    )


def _index_in(file: Location) -> dict[str, Any]:
    found: dict[str, Any] = json_value(read_bytes(file, what="the index"), str(file))
    return found  # an object: it was opened as an index


def _index_of(reader: Reader, root: Location, files: Sequence[str]) -> dict[str, Any]:
    """An index where there is none, since nothing else could say the version."""
    headers = ((name, read_header(root / name)) for name in files)
    return {
        "metadata": {"total_size": sum(tensor.spec.nbytes for tensor in reader.tensors.values())},
        "weight_map": {piece.name: name for name, header in headers for piece in header.pieces},
    }


def _with_version(document: Mapping[str, Any], version: str) -> str:
    known = document.get("metadata")
    metadata = dict(known) if isinstance(known, dict) else {}
    made = {**document, "metadata": {**metadata, "version": version}}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _record_text(
    record: SliceFile, written: Mapping[str, str], found: Sequence[RecordedTensor]
) -> str:
    """The record with the digests of the new version; it was not made by the conversion that made the version before."""
    digests = crcs_of(found)
    tensors = {
        name: replace(entry, digest=digests.get(name, entry.digest)) for name, entry in record.tensors.items()
    }  # fmt: skip
    files = {name: digest_of(text.encode()) for name, text in written.items()}
    return render_slices(
        replace(record, tensors=tensors, files={**record.files, **files}, conversion="", made=None)
    ).decode()
