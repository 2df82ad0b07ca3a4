"""The files of a target of torch's distributed checkpoint.

The files of a target of torch's distributed checkpoint.

::

    __0_0.distcp, …    a file for each shard: slice i of each tensor is in file i
    __N_0.distcp       values that are no tensors, behind the last shard
    __M_0.distcp, …    values that are not read, a file for each
    slices.json        layouts and digests
    .metadata          written last

A number of the target is a tensor like any other while it is moved. torch expects a Python number in the
pickle of an item. So the number's elements are written before the items of the first file, where torch does not read, and the item is
made from them at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Carried
from reshard.formats.dcp.files import data_file
from reshard.formats.dcp.metadata import ItemPlace
from reshard.formats.dcp.write_items import (
    PlacedEntry,
    PlacedItem,
    StateEntry,
    TensorItem,
    entry_value,
    items_file,
    metadata_bytes,
    next_item,
    python_numbers,
    state_entries,
    values_file,
)
from reshard.formats.file_map import ChunkChecksum, FileMap, Place, SharedFile
from reshard.formats.limits import MAX_ARCHIVE_RECORDS, MAX_DIRECTORY_BYTES
from reshard.formats.loose_pieces import SlicePlaces
from reshard.formats.marks import DCP_METADATA
from reshard.formats.slices.slice_file import FILE_NAME, digest_of, target_record
from reshard.formats.torch.archive import Most, open_archive
from reshard.formats.torch.write_archive import encode_pickle
from reshard.geometry.dtypes import number_of
from reshard.geometry.grid import Grid, Index
from reshard.storage.location import Location, open_file


def carried_archive(carried: Carried, name: str) -> bytes:
    """The archive of the value of this name.

    Raises CorruptError where a record of it does not have its CRC-32: the copy would look whole.
    """
    (part,) = carried.parts
    extent = part.extent
    where = f"{extent.path}: the value {name!r}"
    with closing(open_file(extent.path, extent.version)) as file:
        data = file.read(extent.offset, extent.length)

    def read(offset: int, nbytes: int) -> bytes:
        return data[offset : offset + nbytes]  # within it: the archive's directory is checked

    most = Most(MAX_ARCHIVE_RECORDS, MAX_DIRECTORY_BYTES, len(data))
    archive = open_archive(read, len(data), where, most)
    for record in archive.records:
        archive.small(record)
    return data


def plan_files(target: TargetCheckpoint) -> FileMap:
    """The files of a target; nothing is written yet. Raises as ``state.state_entries``."""
    planned = _Planned(target)
    return FileMap(
        places=planned.places,
        finish=planned.finish,
        names=lambda: [DCP_METADATA, FILE_NAME, *planned.shared],
        shared=planned.shared,
        shared_file=planned.shared_file,
    )


class _Planned:
    """The plan from which the files of a target follow; it never changes."""

    def __init__(self, target: TargetCheckpoint) -> None:
        self._target = target
        self._numbers = python_numbers(target)
        self._entries = state_entries(target, self._numbers)
        self._grids = {
            name: tensor.packed or Grid.whole(tensor.spec.shape)
            for name, tensor in target.tensors.items()
        }
        self._items: dict[str, list[TensorItem]] = defaultdict(list)
        self._of_tensors: dict[str, dict[Index, tuple[str, TensorItem]]] = {}
        self._stored = self._located_numbers()
        self._first = sum(target.tensors[name].spec.nbytes for name in self._stored)
        self._stored |= self._located_tensors()
        first = [data_file(0)] if self._first else []
        self.shared = tuple(dict.fromkeys([*first, *self._items]))

    def _located_numbers(self) -> dict[str, SlicePlaces]:
        """The places of the elements of numbers, one behind the other."""
        found, at = {}, 0
        for name, tensor in self._target.tensors.items():
            if name in self._numbers:
                found[name] = SlicePlaces(tensor, self._grids[name], {(): (Place(data_file(0), at),)})  # fmt: skip
                at += tensor.spec.nbytes
        return found

    def _located_tensors(self) -> dict[str, SlicePlaces]:
        """The places of the slices of each tensor: those of their items."""
        found = {}
        ends = {data_file(0): self._first}
        for name, tensor in self._target.tensors.items():
            if name in self._numbers:
                continue
            grid, items = self._grids[name], dict[Index, tuple[str, TensorItem]]()
            for number, index in enumerate(grid.indices()):
                file = data_file(number)
                item = next_item(tensor.spec.dtype, grid.box(index), ends.get(file, 0))
                ends[file] = item.at + item.nbytes
                items[index] = (file, item)
                self._items[file].append(item)
            starts = {index: (Place(file, item.start),) for index, (file, item) in items.items()}
            found[name] = SlicePlaces(tensor, grid, starts)
            self._of_tensors[name] = items
        return found

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The part of a file that has the chunk."""
        return self._stored[name].places(index)

    def shared_file(self, file: str) -> SharedFile:
        """The items of one shard."""
        return items_file(self._first if file == data_file(0) else 0, self._items.get(file, ()))

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        checksums: Iterable[ChunkChecksum],  # noqa: ARG002  the inserts get their CRC-32s from the engine
    ) -> Mapping[str, bytes]:
        """Writes the values and the record; ``.metadata`` is the marker."""
        files, places = self._write_values(root)
        metadata = metadata_bytes([self._placed(entry, places) for entry in self._entries])
        files[DCP_METADATA] = digest_of(metadata)
        (root / FILE_NAME).write(target_record(self._target, digests, files))
        return {DCP_METADATA: metadata}

    def _write_values(self, root: Location) -> tuple[dict[str, str], dict[str, ItemPlace]]:
        """Writes the files of values, if there are any; returns their digests, and the place of each value."""
        digests, places = self._write_carried(root)
        entries = [entry for entry in self._entries if entry.tensor is None and not entry.carried]
        if not entries:
            return digests, places
        file = data_file(len(self.shared))
        numbers = self._read_numbers(root)
        content, found = values_file([encode_pickle(entry_value(e, numbers)) for e in entries])
        (root / file).write(content)
        for entry, (offset, nbytes) in zip(entries, found, strict=True):
            places[entry.name] = ItemPlace(file, offset, nbytes)
        return {**digests, file: digest_of(content)}, places

    def _write_carried(self, root: Location) -> tuple[dict[str, str], dict[str, ItemPlace]]:
        """Copies the archives of values that are not read, one at a time."""
        digests: dict[str, str] = {}
        places: dict[str, ItemPlace] = {}
        for entry in self._entries:
            leaf = entry.carried
            if leaf is not None and leaf.carried is not None:
                file = data_file(len(self.shared) + 1 + len(places))
                content = carried_archive(leaf.carried, leaf.name)
                (root / file).write(content)
                digests[file] = digest_of(content)
                places[entry.name] = ItemPlace(file, 0, len(content))
        return digests, places

    def _read_numbers(self, root: Location) -> dict[str, Any]:
        """The numbers, from their elements."""
        if not self._numbers:
            return {}
        with closing((root / data_file(0)).open()) as opened:
            elements = opened.read(0, self._first)
        found = {}
        for name in self._numbers:
            spec, (place,) = self._target.tensors[name].spec, self.places(name, ())
            element = elements[place.start : place.start + spec.nbytes]
            found[name] = number_of(spec.dtype, element)
        return found

    def _placed(self, entry: StateEntry, values: Mapping[str, ItemPlace]) -> PlacedEntry:
        if entry.tensor is None:
            return PlacedEntry(entry, [PlacedItem(None, values[entry.name])])
        spec, grid = self._target.tensors[entry.tensor].spec, self._grids[entry.tensor]
        items = [
            PlacedItem(grid.box(index), ItemPlace(file, item.at, item.nbytes))
            for index, (file, item) in self._of_tensors[entry.tensor].items()
        ]
        return PlacedEntry(entry, items, spec.dtype, spec.shape)
