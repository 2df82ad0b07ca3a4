"""The files of a safetensors target, whose headers are known before the first byte, so that any worker writes any chunk.

Beside the files of a folder there is ``slices.json``, and for Hugging Face shards their index, which names the version of a target
that is one. A checkpoint of one file has its record in the header, with zeros for digests until they are known.

The slices of tensors in each file, for each form of a safetensors target.

- one, shards: whole tensors, in the tree's order; shards are filled up to a number of bytes;
- ranks: a file for each device of the mesh, with that device's slice of every tensor, replicas included;
- dcp: the same files, but each slice once, in the least filled of the files that could have it. A file without any
  slice is left out.

Within a file the tensors are laid out by falling alignment, then by name.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.file_map import ChunkChecksum, FileMap, Place, SharedFile
from reshard.formats.loose_pieces import SlicePlaces
from reshard.formats.safetensors.files import ONLY_FILE, file_names, index_of_pattern
from reshard.formats.safetensors.format import SafetensorsForm
from reshard.formats.safetensors.header import (
    HEADER_DIGEST,
    NO_DIGEST,
    RECORD,
    HeaderEntry,
    header_shape,
    safetensors_header,
    with_digest,
)
from reshard.formats.safetensors.slices import DCP_SLICES, RESHARD_SLICES
from reshard.formats.slices.file_digests import digests_of_files
from reshard.formats.slices.slice_file import FILE_NAME, digest_of, target_record
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_layout import device_boxes
from reshard.storage.commit_markers import markers_at
from reshard.storage.copying import copy_file
from reshard.storage.location import Location


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
    every = (rank for found in holders for of_box in found.values() for rank in of_box)
    count = 1 + max(every, default=0)
    files: list[list[PlannedSlice]] = [[] for _ in range(count)]
    filled = [0] * count
    for tensor, found in zip(tensors, holders, strict=True):
        for box, ranks in (found or {Box.full(tensor.spec.shape): list(range(count))}).items():
            rank = min(ranks, key=filled.__getitem__)
            files[rank].append(PlannedSlice(tensor, box))
            filled[rank] += max(1, files[rank][-1].nbytes)
    return [file for file in files if file] or [[]]


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


def plan_files(target: TargetCheckpoint, form: SafetensorsForm) -> FileMap:
    """The files of a safetensors checkpoint; nothing is written yet.

    Raises PlanError for a dtype, a name or a number of tensors that the format does not allow, and for files that the
    layouts do not give.
    """
    planned = _Planned(target, form)
    return FileMap(
        places=planned.places,
        finish=planned.finish,
        names=planned.names,
        shared=planned.sizes,
        shared_file=planned.shared_file,
        copy=planned.copy,
    )


class _Planned:
    """The plan from which the files of a target follow; it never changes."""

    def __init__(self, target: TargetCheckpoint, form: SafetensorsForm) -> None:
        self._target = target
        self._form = form
        self._files = {file.name: file for file in listed_files(target, form)}
        self.sizes: dict[str, int] = {}
        self._stored = self._located()

    def names(self) -> list[str]:
        """Every file."""
        return [self._index_name, FILE_NAME, *self.sizes, *self._form.carried.files]

    def copy(self, root: Location) -> None:
        """Copies the files that are carried."""
        carried = self._form.carried
        for path, source in zip(carried.files, carried.locations, strict=True):
            (root / path).parent.make_folder()
            if path in carried.edited:
                (root / path).write(carried.edited[path].encode())
            else:
                copy_file(source, root / path)

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The part of a file, or of the file of each device that has the chunk."""
        return self._stored[name].places(index)

    def shared_file(self, file: str) -> SharedFile:
        """A file with its header."""
        return SharedFile(self._header(self._files[file]), self.sizes[file])

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        _: Iterable[ChunkChecksum],  # the format stores none
    ) -> Mapping[str, bytes]:
        """Writes the record with the tensors' digests, and the index."""
        if self._form.files == "one":
            (file,) = self._files.values()
            header, nbytes = self._header(file, digests), self.sizes[file.name]
            (root / file.name).write_ranges([(0, header)], nbytes)
            return {}
        known: dict[str, str] = {}
        if index := self._index():
            (root / self._index_name).write(index)
            known[self._index_name] = digest_of(index)
        known |= digests_of_files(root, self._form.carried.files)
        markers = markers_at(root)
        known |= {name: digest_of(data) for name, data in markers.items()}
        (root / FILE_NAME).write(self._record(digests, known))
        return markers

    @property
    def _index_name(self) -> str:
        return index_of_pattern(self._form.file_names or "") or self._form.name.index

    def _located(self) -> dict[str, SlicePlaces]:
        starts: dict[str, dict[Index, list[Place]]] = defaultdict(lambda: defaultdict(list))
        grids = {n: self._form.slices_of(t) for n, t in self._target.tensors.items()}
        for file in self._files.values():
            offset = len(self._header(file))
            for one in file.slices:
                if one.box.size:
                    starts[one.name][_index_of(one, grids[one.name])].append(
                        Place(file.name, offset)
                    )
                offset += one.nbytes
            self.sizes[file.name] = offset
        return {
            name: SlicePlaces(tensor, grids[name], {i: tuple(p) for i, p in starts[name].items()})
            for name, tensor in self._target.tensors.items()
        }

    def _header(self, file: PlannedFile, digests: Mapping[str, str] | None = None) -> bytes:
        """The bytes before the tensors of a file, always as many; None: digests are not known yet."""
        metadata = {HEADER_DIGEST: NO_DIGEST, **self._target.metadata.header_entries}
        if self._form.files in ("ranks", "dcp"):
            metadata |= {RESHARD_SLICES: _slices_text(file, self._target.conversion)}
        if self._form.files == "dcp":
            offsets = {one.name: {"saved_offsets": one.header_offset} for one in file.slices}
            metadata |= {"DCP_VERSION": "1.0", DCP_SLICES: json.dumps(offsets)}
        if self._form.files == "one":
            zeros = dict.fromkeys(self._target.tensors, NO_DIGEST)
            metadata |= {RECORD: self._record({**zeros, **(digests or {})}).decode()}
        return with_digest(safetensors_header([one.entry for one in file.slices], metadata))

    def _record(self, digests: Mapping[str, str], files: Mapping[str, str] | None = None) -> bytes:
        """The record, without the content of headers and index."""
        metadata = self._target.metadata
        own = replace(metadata, header={}, index={} if self._has_index else metadata.index)
        return target_record(replace(self._target, metadata=own), digests, files)

    @property
    def _has_index(self) -> bool:
        """True if there is an index: a single file that loaders find by its name has none, unless deltas may stand on its version."""
        is_alone = list(self._files) in ([ONLY_FILE], [self._form.name.only_file])
        is_version = self._target.version is not None and bool(self._target.tensors)
        return self._form.files == "shards" and (is_version or not is_alone)

    def _index(self) -> bytes:
        """The index of Hugging Face shards; nothing where there is none."""
        target = self._target
        if not self._has_index:
            return b""
        size = sum(t.spec.nbytes for t in target.tensors.values())
        version = {} if target.version is None else {"version": target.version}
        kept = {key: json.loads(text) for key, text in target.metadata.index.items()}
        document = {
            "metadata": {**kept, **version, "total_size": size},
            "weight_map": {
                one.name: file.name for file in self._files.values() for one in file.slices
            },
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _index_of(one: PlannedSlice, grid: Grid) -> Index:
    return tuple(bisect_right(c, at) - 1 for c, at in zip(grid.cuts, one.box.start, strict=True))


def _slices_text(file: PlannedFile, conversion: str) -> str:
    tensors = {
        one.name: {"offset": one.header_offset, "full_shape": one.header_full_shape}
        for one in file.slices
    }
    document = {
        "version": 1,
        "shard": file.number,
        "shards": file.count,
        "conversion": conversion,
        "tensors": tensors,
    }
    return json.dumps(document, separators=(",", ":"))
