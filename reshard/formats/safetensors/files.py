"""The files of a safetensors checkpoint: one file, or a folder of them with or without an index.

::

    model.safetensors                     a file by itself
    folder/model.safetensors              a folder with one file
    folder/model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
    folder/model.safetensors.index.json   {"metadata": {…}, "weight_map": {NAME: FILE}}

The names in an index decide, as in transformers: whatever the files are called, ``weight_map`` says which of them holds
a tensor. An index can be named itself, where its folder has several. Without an index the names of the files must say that
they are one model (``file_sets``).

A file may be a symbolic link that stays in the folder. In the cache of huggingface_hub every file of a snapshot is a
link to a blob of the same repository (``models--ORG--NAME/snapshots/REVISION/FILE`` → ``../../blobs/HASH``), and those
are followed too; a link to anywhere else is refused, since a folder from strangers may point at any file.
"""

from __future__ import annotations

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.errors import NotACheckpointError, ReshardError
from reshard.formats.model_index import ModelIndex, read_model_index
from reshard.formats.safetensors.file_sets import (
    is_whole_set,
    refuse_lone_shard,
    refuse_missing_files,
    refuse_several,
)
from reshard.formats.safetensors.header import has_whole_size
from reshard.formats.safetensors.index import (
    ENDING,
    is_index,
    is_weights,
)
from reshard.storage.location import Location


class Files(Struct, frozen=True):
    """Where the tensors are.

    Attributes:
        files: the safetensors files, by name.
        folder: the folder that they are in; None for a file by itself.
        index: the index; None for none.
        unlisted: the other safetensors files of the folder, which no index lists.
    """

    files: tuple[Location, ...]
    folder: Location | None = None
    index: ModelIndex | None = None
    unlisted: tuple[Location, ...] = ()


def has_files(folder: Location) -> bool:
    """Whether a folder holds safetensors files, or an index of them, at its top; StorageError if it cannot be listed."""
    return any(is_weights(entry.name) for entry in folder.entries())


def files_of(root: Location, unlisted: Unlisted = "leave") -> Files:
    """The files of a checkpoint: a file, a folder, or an index.

    Raises NotACheckpointError where it is not clear which files are the model, MissingError where one of them is missing.
    """
    if is_named_index(root):
        return _indexed(root.parent, root, _names(root.parent))
    if not root.is_folder():
        if unlisted == "leave":
            refuse_lone_shard(root)
        return Files((root,))
    names = _names(root)
    indexes = list(filter(is_index, names))
    if len(indexes) > 1:
        raise NotACheckpointError(
            f"{root} holds {len(indexes)} indexes of safetensors files: {', '.join(indexes[:4])}; name the one to read, such as "
            f"{root / indexes[0]}"
        )
    if indexes:
        return _indexed(root, root / indexes[0], names)
    weights = [name for name in names if name.endswith(ENDING)]
    if unlisted == "leave":
        refuse_several(root, weights)
    refuse_missing_files(root, weights)
    return Files(tuple(root / name for name in weights), root)


def is_named_index(root: Location) -> bool:
    """Whether a location is an index, and not a folder or a file of tensors."""
    return is_index(root.name) and root.is_file()


def index_files(root: Location) -> tuple[Location, ...] | None:
    """What an index stands for: itself and the safetensors files beside it; None for any other location."""
    if not is_named_index(root):
        return None
    beside = [name for name in _names(root.parent) if name.endswith(ENDING)]
    return (root, *(root.parent / name for name in beside))


def folder_of(root: Location) -> Location:
    """The folder of a checkpoint: that of an index, if one is named, else the location itself."""
    return root.parent if is_named_index(root) else root


def is_whole(folder: Location) -> bool:
    """Whether all files of a safetensors model are in a folder, as far as names and sizes say; no for any other folder.

    Programs write such folders in place, the index last. A file without an index counts where it has the size that its header
    says; in a bucket, where files appear whole, any does.
    """
    try:
        names = _names(folder)
        indexes = list(filter(is_index, names))
        for name in indexes:
            read_model_index(folder / name, frozenset(names))
        weights = [name for name in names if name.endswith(ENDING)]
        if indexes or not weights:
            return bool(indexes)
        at_once = not folder.traits.renames
        return is_whole_set(weights) and (
            at_once or all(has_whole_size(folder / name) for name in weights)
        )
    except ReshardError:
        return False


def _names(folder: Location) -> list[str]:
    return [entry.name for entry in folder.entries()]


def _indexed(folder: Location, file: Location, names: list[str]) -> Files:
    """The files that an index lists, and those that no index of the folder lists."""
    there = frozenset(names)
    index = read_model_index(file, there)
    of_others: set[str] = set()
    for name in filter(is_index, names):
        if name != file.name:
            of_others.update(_files_in(folder / name, there))
    listed = index.files
    known = of_others.union(listed)
    unlisted = [name for name in names if name.endswith(ENDING) and name not in known]
    return Files(
        tuple(folder / name for name in listed),
        folder,
        index,
        tuple(folder / name for name in unlisted),
    )


def _files_in(index: Location, there: frozenset[str]) -> list[str]:
    """The files of another model in the folder; none where its index cannot be read, which is not asked for."""
    try:
        return read_model_index(index, there).files
    except ReshardError:
        return []
