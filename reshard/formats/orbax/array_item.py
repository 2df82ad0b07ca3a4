"""An item that is one array, saved with ``ArraySave`` by a version of Orbax that wrote no ``_METADATA`` for it.

::

    <item>/checkpoint/.zarray     and the chunks; ArrayCheckpointHandler may be given another name for the folder

Newer versions write ``_METADATA`` with one leaf of that name, so that both are read alike.
"""

from __future__ import annotations

from reshard.formats.zarr.metadata import ZARR2_FILE
from reshard.storage.location import Location

HANDLER = "ArrayCheckpointHandler"

USUAL_NAME = "checkpoint"


def has_array(folder: Location) -> bool:
    """Whether a folder holds an array under the usual name."""
    array = folder / USUAL_NAME
    # The listing of a bucket's folder tells that it has none of that name, without another request.
    return array.is_folder() and (array / ZARR2_FILE).exists()


def array_name(folder: Location) -> str | None:
    """The name of the array that a folder holds; None for no array, or several."""
    if has_array(folder):
        return USUAL_NAME
    names = folder.folders() if folder.is_folder() else []
    found = [name for name in names if (folder / name / ZARR2_FILE).exists()]
    return found[0] if len(found) == 1 else None


def is_array_handler(handler: str) -> bool:
    """Whether an item was saved by the handler of single arrays."""
    return handler.rpartition(".")[2] == HANDLER
