"""Which files of a checkpoint are chunks of its tensors, each in a plain file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from reshard.formats.orbax.chunk_keys import is_value
from reshard.formats.orbax.find_arrays import ArrayFiles
from reshard.formats.orbax.item_tensors import OpenItem
from reshard.formats.orbax.plain_files import PlainFiles


class ChunkFiles:
    """Tells chunks from other files, without a list of them: there may be millions."""

    def __init__(self, items: Mapping[str, OpenItem]) -> None:
        self._arrays: dict[str, ArrayFiles] = {}
        for item in items.values():
            top = f"{item.item.directory}/" if item.item.directory else ""
            for array in item.arrays.values():
                if isinstance(array.values, PlainFiles):
                    self._arrays[f"{top}{array.param_name}".rstrip("/")] = array

    def __contains__(self, path: str) -> bool:
        """Whether a path below the checkpoint is a chunk within its tensor's bounds."""
        steps = path.split("/")
        for depth in range(len(steps) - 1, -1, -1):
            array = self._arrays.get("/".join(steps[:depth]))
            if array is not None and is_value("/".join(steps[depth:]), array.zarr):
                return True
        return False
