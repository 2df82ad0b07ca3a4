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

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, MissingError, NotACheckpointError
from reshard.formats.json.safe_json import expect, read_json
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.storage.inside import Inside
from reshard.storage.local import storage_errors

ENDING = ".safetensors"
INDEX_ENDING = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_ENDING}"

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


class Files(Struct, frozen=True):
    """Where the tensors are.

    Attributes:
        paths: of the safetensors files, by name.
        index: path of the index; "" for none.
        weight_map: the file of each tensor, as the index has it.
        folder: path of the folder that they are in; "" for a file by itself.
    """

    paths: tuple[str, ...]
    index: str = ""
    weight_map: Mapping[str, str] = {}
    folder: str = ""


def has_files(path: str) -> bool:
    """Whether a local folder holds safetensors files, or an index of them, at its top; OSError if it cannot be listed."""
    try:
        with os.scandir(path) as found:
            return any(entry.name.endswith((ENDING, INDEX_ENDING)) for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return False


def files_of(path: str) -> Files:
    """The files of the checkpoint at a local path.

    Raises NotACheckpointError where there are several indexes, MissingError where a file of the index is missing,
    FormatError for a link that leads out.
    """
    if not Path(path).is_dir():
        return Files((path,))
    with storage_errors("list", path), os.scandir(path) as found:
        names = sorted(entry.name for entry in found)
    indexes = [name for name in names if name.endswith(INDEX_ENDING)]
    if len(indexes) > 1:
        raise NotACheckpointError(
            f"{path} holds {len(indexes)} indexes of safetensors files: {', '.join(indexes[:4])}; one folder holds one "
            "model, so move the others away, or name a safetensors file"
        )
    if FILE_NAME in names:
        _inside(path, [FILE_NAME], "the record")
    if not indexes:
        paths = _inside(path, [name for name in names if name.endswith(ENDING)])
        return Files(paths, folder=path)
    _inside(path, indexes, "the index")
    return _indexed(path, f"{path.rstrip('/')}/{indexes[0]}", frozenset(names))


def _indexed(folder: str, index: str, there: frozenset[str]) -> Files:
    weight_map = _weight_map(read_json(Path(index)), index)
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
    files = sorted(set(weight_map.values()))
    return Files(_inside(folder, files), index, weight_map, folder)


def _weight_map(document: Any, index: str) -> dict[str, str]:
    found = expect(document, dict, "the index", index)
    listed = expect(found.get("weight_map"), dict, "weight_map", index)
    if not listed:
        raise CorruptError(f"{index}: weight_map is empty; expected the file of each tensor")
    return {
        name: expect(file, str, f"the file of {name[:200]!r}", index)
        for name, file in listed.items()
    }


def _inside(folder: str, names: Iterable[str], what: str = "a safetensors file") -> tuple[str, ...]:
    """Paths of files in a folder. Raises FormatError, naming ``what``, for a link that leads elsewhere."""
    inside = links_inside(folder)
    paths = tuple(f"{folder.rstrip('/')}/{name}" for name in names)
    for path in paths:
        inside.check(path, what)
    return paths


def links_inside(folder: str) -> Inside:
    """Checks links of a folder: they stay in it or, in a snapshot of huggingface_hub, lead to its blobs."""
    return Inside(folder.rstrip("/"), _blobs(folder))


def _blobs(folder: str) -> tuple[str, ...]:
    """The folder of the blobs where ``folder`` is a snapshot in the cache of huggingface_hub."""
    snapshots = Path(os.path.realpath(folder)).parent
    if snapshots.name == "snapshots" and _REPOSITORY.fullmatch(snapshots.parent.name):
        return (f"{snapshots.parent}/blobs",)
    return ()
