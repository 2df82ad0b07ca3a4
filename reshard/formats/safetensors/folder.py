"""A folder of safetensors files: the files beside the weights, what a record covers, and whether a target may replace it."""

from __future__ import annotations

from reshard.errors import FormatError, ReshardError
from reshard.formats.base import Reader
from reshard.formats.safetensors.files import files_of, is_of_model
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import FILE_NAME, PARTIAL_NAME
from reshard.storage.location import Location


def files_beside(folder: Location) -> tuple[Location, ...]:
    """Every plain file at the top of a folder that is neither weights, nor their index or record; by name.

    Raises FormatError for a link that leads out of the folder.
    """
    folder = folder.view()
    files: list[Location] = []
    for entry in folder.entries():
        file, name = folder / entry.name, entry.name
        if is_of_model(name) or name in (FILE_NAME, PARTIAL_NAME):
            continue
        found = file.status(f"the file {name!r}")
        if found is not None and found.kind == "file":
            files.append(file)
        elif found is None or found.kind != "folder":
            raise FormatError(
                f"{file} is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
            )
    return tuple(files)


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


def is_replaceable(root: Location) -> bool:
    """Whether it is a safetensors file, or a folder with nothing but what this project wrote.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which nobody wants to lose.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        names = [entry.name for entry in root.entries()]
    except ReshardError:
        return False
    known = frozenset({FILE_NAME, *(record.files if record is not None else ())})
    return record is not None and all(n in known or is_of_model(n) for n in names)
