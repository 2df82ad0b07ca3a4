"""The contents of the data files: the texts first, then the slices of tensors, then tensors of strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Carried, Leaf
from reshard.formats.file_map import Place
from reshard.formats.slice_places import SlicePlaces
from reshard.formats.tensorflow.bundle import MOST_DATA_FILES
from reshard.formats.tensorflow.files import data_ending
from reshard.formats.tensorflow.form import TensorflowForm
from reshard.formats.tensorflow.strings import joined_bytes
from reshard.geometry.grid import Grid, Index
from reshard.storage.local.staging import STAGED_PREFIX


class DataFiles(Struct, frozen=True):
    """The data files of a target, under the names that they have while they are staged.

    Attributes:
        sizes: of the files, in the order of their numbers.
        slices: the places of the slices of each tensor.
        strings: the place of each tensor of strings, by the leaf's name.
    """

    sizes: Mapping[str, int]
    slices: Mapping[str, SlicePlaces]
    strings: Mapping[str, Place]


def place_data(target: TargetCheckpoint, form: TensorflowForm, head_bytes: int) -> DataFiles:
    """Gives everything its place; the first file begins with ``head_bytes`` of texts.

    Raises PlanError for more files than their names can count.
    """
    sizes = [head_bytes]
    spots = [_add(sizes, *one, form) for one in _contents(target)]
    if len(sizes) > MOST_DATA_FILES:
        raise PlanError(
            f"the target would have {len(sizes):,} data files, and TensorFlow counts at most {MOST_DATA_FILES:,}; ask for larger ones "
            "(file_bytes), for one (files), or for fewer shards (layout)"
        )
    names = [f"{STAGED_PREFIX}{data_ending(number, len(sizes))}" for number in range(len(sizes))]
    found = (Place(names[number], offset) for number, offset in spots)
    slices = {}
    for name, tensor in target.tensors.items():
        grid = tensor.packed or Grid.whole(tensor.spec.shape)
        starts: dict[Index, tuple[Place, ...]] = {i: (next(found),) for i in grid.indices()}
        slices[name] = SlicePlaces(tensor, grid, starts)
    strings = {leaf.name: next(found) for leaf, _ in carried_strings(target)}
    return DataFiles(dict(zip(names, sizes, strict=True)), slices, strings)


def carried_strings(target: TargetCheckpoint) -> Iterator[tuple[Leaf, Carried]]:
    """The tensors of strings, and their places in the source."""
    return ((leaf, leaf.carried) for leaf in target.leaves if leaf.carried)


def _contents(target: TargetCheckpoint) -> Iterator[tuple[int, int]]:
    """Everything that gets a place, in order: the number of its shard, and its bytes."""
    for tensor in target.tensors.values():
        grid = tensor.packed or Grid.whole(tensor.spec.shape)
        for number, box in enumerate(grid.boxes()):
            yield number, box.size * tensor.spec.itemsize
    for _, carried in carried_strings(target):
        yield 0, joined_bytes(carried)


def _add(sizes: list[int], shard: int, nbytes: int, form: TensorflowForm) -> tuple[int, int]:
    """Adds to one of the files, perhaps a new one; returns its number and the offset."""
    number = shard if form.files == "ranks" else len(sizes) - 1
    if form.files == "shards" and sizes[number] and sizes[number] + nbytes > form.file_bytes:
        number += 1
    sizes.extend([0] * (number + 1 - len(sizes)))
    offset = sizes[number]
    sizes[number] += nbytes
    return number, offset
