"""Which keys below an array are values of it, chunks or shards of inner chunks, and which files of a checkpoint are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from reshard.formats.contents import Stored
from reshard.formats.orbax.find_arrays import ArrayFiles
from reshard.formats.orbax.item_tensors import OpenItem
from reshard.formats.orbax.plain_files import PlainFiles
from reshard.formats.zarr.metadata import ZarrArray

_NUMBER = r"(0|[1-9][0-9]{0,18})"


def is_value(key: str, zarr: ZarrArray) -> bool:
    """Whether a key, below the array's own, is that of a value within the array's bounds."""
    match = _pattern(len(zarr.shape), zarr.separator, zarr.prefixed).fullmatch(key)
    return match is not None and all(
        int(position) * value < size
        for position, value, size in zip(match.groups(), zarr.value_shape, zarr.shape, strict=True)
    )


def value_count(zarr: ZarrArray) -> int:
    """How many values the array has where all are stored."""
    return math.prod(-(-n // v) for n, v in zip(zarr.shape, zarr.value_shape, strict=True))


def stored_values(array: ArrayFiles) -> Stored:
    """How many values an array should have, and how many are not stored, by one look at all of its keys."""
    found = sum(is_value(key, array.zarr) for key in array.values.below(array.prefix))
    count = value_count(array.zarr)
    return Stored(count - found, count)


@lru_cache(maxsize=64)
def _pattern(rank: int, separator: str, prefixed: bool) -> re.Pattern[str]:
    """The form of a key; of a scalar it is fixed (see ``ZarrArray.value_key``)."""
    if not rank:
        return re.compile("c" if prefixed else "0")
    numbers = re.escape(separator).join([_NUMBER] * rank)
    return re.compile(f"c{re.escape(separator)}{numbers}" if prefixed else numbers)


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
