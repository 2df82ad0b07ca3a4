"""The record of a safetensors checkpoint: a slices.json in its folder."""

from __future__ import annotations

from pathlib import Path

from reshard.errors import FormatError
from reshard.formats.base import Reader
from reshard.formats.safetensors.carried import files_beside
from reshard.formats.safetensors.files import files_of
from reshard.formats.slices.record_files import RecordedFolder, TensorTree


def takes_record(path: str) -> bool:
    """Whether a record can be made: a file by itself has no room for one."""
    return Path(path).is_dir()


def folders_to_record(root: Path, reader: Reader) -> list[RecordedFolder]:
    """The folder, with the index and the files beside the weights; the digests of tensors cover the rest.

    Raises FormatError for a single file.
    """
    if not root.is_dir():
        raise FormatError(
            f"{reader.uri} is a single safetensors file, which has no room for a record of digests; put it into a folder and "
            "record that, or convert it, which records them"
        )
    names = [path.name for path in files_beside(root)]
    if index := files_of(str(root)).index:
        names.append(Path(index).name)
    tree = TensorTree(reader.leaves, reader.tensors)
    return [RecordedFolder("", tree, tuple(names), data_files=None)]
