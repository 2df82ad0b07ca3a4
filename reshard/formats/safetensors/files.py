"""The files of a safetensors checkpoint: one file, or a folder of them with or without an index.

::

    model.safetensors                     a file by itself
    folder/model.safetensors              a folder with one file
    folder/model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
    folder/model.safetensors.index.json   {"metadata": {…}, "weight_map": {NAME: FILE}}

The names in an index decide, as in transformers: whatever the files are called, ``weight_map`` says which of them holds
a tensor.

A file may be a symbolic link that stays in the folder. In the cache of huggingface_hub every file of a snapshot is a
link to a blob of the same repository (``models--ORG--NAME/snapshots/REVISION/FILE`` → ``../../blobs/HASH``), and those
are followed too; a link to anywhere else is refused, since a folder from strangers may point at any file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, MissingError, NotACheckpointError
from reshard.formats.json.safe_json import expect, parse_json, read_bytes
from reshard.formats.safetensors.model_name import ENDING, is_index
from reshard.formats.slices.slice_file import digest_of
from reshard.storage.location import Location


class Files(Struct, frozen=True):
    """Where the tensors are.

    Attributes:
        files: the safetensors files, by name.
        folder: the folder that they are in; None for a file by itself.
        index: the index; None for none.
        index_digest: CRC-64/NVME of the index, 16 hex digits.
        weight_map: the file of each tensor, as the index has it.
    """

    files: tuple[Location, ...]
    folder: Location | None = None
    index: Location | None = None
    index_digest: str = ""
    weight_map: Mapping[str, str] = {}


def has_files(folder: Location) -> bool:
    """Whether a folder holds safetensors files, or an index of them, at its top; StorageError if it cannot be listed."""
    return any(is_weights(entry.name) for entry in folder.entries())


def is_weights(name: str) -> bool:
    """Whether it is the name of a safetensors file, or of an index of them."""
    return name.endswith(ENDING) or is_index(name)


def files_of(root: Location) -> Files:
    """The files of a checkpoint.

    Raises NotACheckpointError where there are several indexes, MissingError where a file of the index is missing.
    """
    if not root.is_folder():
        return Files((root,))
    names = [entry.name for entry in root.entries()]
    indexes = list(filter(is_index, names))
    if len(indexes) > 1:
        raise NotACheckpointError(
            f"{root} holds {len(indexes)} indexes of safetensors files: {', '.join(indexes[:4])}; one folder holds one "
            "model, so move the others away, or name a safetensors file"
        )
    if not indexes:
        return Files(tuple(root / name for name in names if name.endswith(ENDING)), root)
    return _indexed(root, root / indexes[0], frozenset(names))


def _indexed(folder: Location, index: Location, there: frozenset[str]) -> Files:
    data = read_bytes(index, what="the index")
    weight_map = _weight_map(parse_json(data, str(index)), str(index))
    for name, file in weight_map.items():
        if "/" in file or file in ("", ".", ".."):
            raise CorruptError(
                f"{index}: the file of {name[:200]!r} is {file[:200]!r}; expected the name of a file in this folder"
            )
        if file not in there:
            raise MissingError(
                f"{index} says that {name[:200]!r} is in {file!r}, but {folder} has no such file; copy it there, or "
                "restore the folder from a copy"
            )
    files = tuple(folder / name for name in sorted(set(weight_map.values())))
    return Files(files, folder, index, digest_of(data), weight_map)


def _weight_map(document: Any, index: str) -> dict[str, str]:
    found = expect(document, dict, "the index", index)
    listed = expect(found.get("weight_map"), dict, "weight_map", index)
    if not listed:
        raise CorruptError(f"{index}: weight_map is empty; expected the file of each tensor")
    return {
        name: expect(file, str, f"the file of {name[:200]!r}", index)
        for name, file in listed.items()
    }
