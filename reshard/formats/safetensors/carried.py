"""The files beside the weights: config.json, tokenizers and whatever else a folder holds."""

from __future__ import annotations

from reshard.errors import FormatError
from reshard.formats.safetensors.files import ENDING, INDEX_ENDING
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
        if name.endswith((ENDING, INDEX_ENDING)) or name in (FILE_NAME, PARTIAL_NAME):
            continue
        found = file.status(f"the file {name!r}")
        if found is not None and found.kind == "file":
            files.append(file)
        elif found is None or found.kind != "folder":
            raise FormatError(
                f"{file} is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
            )
    return tuple(files)
