"""The slices of tensors in each file, for each form of a safetensors target.

- one, shards: whole tensors, in the tree's order; shards are filled up to a number of bytes;
- ranks: a file for each device of the mesh, with that device's slice of every tensor, replicas included;
- dcp: the same files, but each slice once, in the least filled of the files that could have it. A file without any
  slice is left out.

Within a file the tensors are laid out by falling alignment, then by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.safetensors.dtypes import header_shape
from reshard.formats.safetensors.form import SafetensorsForm
from reshard.formats.safetensors.model_name import file_names
from reshard.formats.safetensors.write.header import HeaderEntry
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box
from reshard.layout.tensor_layout import device_boxes


class PlannedSlice(Struct, frozen=True):
    """A slice of a tensor that a file holds."""

    tensor: TargetTensor
    box: Box

    @property
    def name(self) -> str:
        return self.tensor.spec.name

    @property
    def entry(self) -> HeaderEntry:
        return HeaderEntry(self.name, self.tensor.spec.dtype, self.box.shape)

    @property
    def header_offset(self) -> list[int]:
        """Its offset in the full tensor, counted as the header counts."""
        return list(header_shape(self.tensor.spec.dtype, self.box.start))

    @property
    def header_full_shape(self) -> list[int]:
        return list(header_shape(self.tensor.spec.dtype, self.tensor.spec.shape))

    @property
    def nbytes(self) -> int:
        return self.box.size * self.tensor.spec.itemsize


class PlannedFile(Struct, frozen=True):
    """A file to write: its slices in the order in which their bytes follow one another.

    Attributes:
        number: of the file, from 0.
        count: the number of files.
    """

    name: str
    slices: tuple[PlannedSlice, ...]
    number: int
    count: int


def listed_files(target: TargetCheckpoint, form: SafetensorsForm) -> list[PlannedFile]:
    """The files of ``target``.

    Raises PlanError where a file for each device is asked for and the layouts have no mesh, or several.
    """
    tensors = list(target.tensors.values())
    if form.files in ("one", "shards"):
        listed = list(_shards(tensors, form))
    elif form.files == "ranks":
        listed = _ranks(tensors)
    else:
        listed = _each_once(tensors, form)
    names = file_names(form.files, len(listed), form.file_names, form.name)
    return [
        PlannedFile(name, tuple(sorted(slices, key=_in_file)), number, len(listed))
        for number, (name, slices) in enumerate(zip(names, listed, strict=True))
    ]


def _in_file(one: PlannedSlice) -> tuple[int, str]:
    itemsize = storage_bytes(one.tensor.spec.dtype)
    alignment = itemsize & -itemsize  # packed elements have three bytes
    return -alignment, one.name


def _whole(tensor: TargetTensor) -> PlannedSlice:
    return PlannedSlice(tensor, Box.full(tensor.spec.shape))


def _shards(tensors: Sequence[TargetTensor], form: SafetensorsForm) -> Iterator[list[PlannedSlice]]:
    file: list[PlannedSlice] = []
    nbytes = 0
    for tensor in tensors:
        if file and form.files == "shards" and nbytes + tensor.spec.nbytes > form.file_bytes:
            yield file
            file, nbytes = [], 0
        file.append(_whole(tensor))
        nbytes += tensor.spec.nbytes
    if file or not tensors:
        yield file


def _ranks(tensors: Sequence[TargetTensor]) -> list[list[PlannedSlice]]:
    boxes = [_device_boxes(tensor) for tensor in tensors]
    counts = {len(found): tensor for tensor, found in zip(tensors, boxes, strict=True) if found}
    if not counts:
        raise PlanError(
            "files is 'ranks', a file for each device of the target mesh, but no tensor has a mesh; give one (mesh or "
            "layout), or ask for others (files)"
        )
    if len(counts) > 1:
        some = " and ".join(f"{n} devices ({t.spec.name!r})" for n, t in sorted(counts.items())[:2])
        raise PlanError(
            f"files is 'ranks', a file for each device of the target mesh, but tensors are split over meshes of {some}; "
            "give one mesh for all (mesh or layout)"
        )
    (count,) = counts
    return [
        [
            PlannedSlice(tensor, found[rank]) if found else _whole(tensor)
            for tensor, found in zip(tensors, boxes, strict=True)
        ]
        for rank in range(count)
    ]


def _device_boxes(tensor: TargetTensor) -> list[Box]:
    """The box of each device; none for a tensor that has no mesh and is whole on each."""
    spec = tensor.spec
    if tensor.partition is not None or tensor.slices is not None:
        raise PlanError(
            f"files is 'ranks', a file for each device of the target mesh, but {spec.name!r} is partitioned without a "
            "mesh; give it mesh axes, or ask for 'dcp' (files)"
        )
    if spec.layout is None or spec.layout.device_mesh is None:
        return []
    return device_boxes(spec.layout, spec.shape, spec.name)


def _each_once(tensors: Sequence[TargetTensor], form: SafetensorsForm) -> list[list[PlannedSlice]]:
    holders = [_holders(tensor, form) for tensor in tensors]
    count = _rank_count(holders)
    files: list[list[PlannedSlice]] = [[] for _ in range(count)]
    filled = [0] * count
    for tensor, found in zip(tensors, holders, strict=True):
        for box, ranks in (found or {Box.full(tensor.spec.shape): list(range(count))}).items():
            rank = min(ranks, key=filled.__getitem__)
            files[rank].append(PlannedSlice(tensor, box))
            filled[rank] += max(1, files[rank][-1].nbytes)
    return [file for file in files if file] or [[]]


def _rank_count(holders: Sequence[dict[Box, list[int]]]) -> int:
    ranks = (rank for found in holders for of_box in found.values() for rank in of_box)
    return 1 + max(ranks, default=0)


def _holders(tensor: TargetTensor, form: SafetensorsForm) -> dict[Box, list[int]]:
    """The ranks that could store each slice; none for a tensor that any rank can store whole."""
    if not math.prod(tensor.spec.shape):
        return {}
    if tensor.partition is not None or tensor.slices is not None:
        boxes = list(form.slices_of(tensor).boxes())
    else:
        boxes = _device_boxes(tensor)
    ranks = sorted(range(len(boxes)), key=lambda rank: boxes[rank].start)
    return {box: list(of_box) for box, of_box in groupby(ranks, key=boxes.__getitem__)}
