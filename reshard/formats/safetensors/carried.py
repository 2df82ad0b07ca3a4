"""The files beside the weights: config.json, tokenizers and whatever else a folder holds."""

from __future__ import annotations

import os
from pathlib import Path

from reshard.errors import FormatError
from reshard.formats.safetensors.files import ENDING, INDEX_ENDING, links_inside
from reshard.formats.slices.slice_file import FILE_NAME, PARTIAL_NAME
from reshard.storage.local import storage_errors


def files_beside(folder: Path) -> tuple[Path, ...]:
    """Every plain file at the top of a folder that is neither weights, nor their index or record; by name.

    Raises FormatError for a link that leads out of the folder.
    """
    with storage_errors("list", folder), os.scandir(folder) as found:
        names = sorted(entry.name for entry in found)
    inside = links_inside(str(folder))
    files: list[Path] = []
    for name in names:
        path = folder / name
        if name.endswith((ENDING, INDEX_ENDING)) or name in (FILE_NAME, PARTIAL_NAME):
            continue
        inside.check(str(path), f"the file {name!r}")
        if path.is_file():
            files.append(path)
        elif not path.is_dir():
            raise FormatError(
                f"{path} is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
            )
    return tuple(files)
