"""The record of a safetensors checkpoint: a slices.json in its folder."""

from __future__ import annotations

from reshard.errors import FormatError
from reshard.formats.base import Reader
from reshard.formats.safetensors.carried import files_beside
from reshard.formats.safetensors.files import files_of
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.storage.location import Location


def takes_record(root: Location) -> bool:
    """Whether a record can be made: a file by itself has no room for one."""
    return root.is_folder()


def folders_to_record(root: Location, reader: Reader) -> list[RecordedFolder]:
    """The folder, with the index and the files beside the weights; the digests of tensors cover the rest.

    Raises FormatError for a single file.
    """
    if not root.is_folder():
        raise FormatError(
            f"{reader.uri} is a single safetensors file, which has no room for a record of digests; put it into a folder and "
            "record that, or convert it, which records them; a file that reshard wrote has its record in the header"
        )
    names = [file.name for file in files_beside(root)]
    index = files_of(root).index
    if index is not None:
        names.append(index.name)
    tree = TensorTree(reader.leaves, reader.tensors)
    return [RecordedFolder("", tree, tuple(names), data_files=None)]
