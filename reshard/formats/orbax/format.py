"""Orbax as a format: its entry in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import Item, StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.format import About, Format, Recognised
from reshard.formats.ocdbt.index import find_databases
from reshard.formats.orbax.aggregate_file import AGGREGATE
from reshard.formats.orbax.aggregate_tree import KeptValues
from reshard.formats.orbax.container import (
    MARKERS,
    is_finished,
    marks_of,
    read_container,
)
from reshard.formats.orbax.folder_record import is_data_file
from reshard.formats.orbax.form import OrbaxForm, arrange
from reshard.formats.orbax.item_tensors import OPENED_LEAF_BYTES, OpenItem, leaf_count
from reshard.formats.orbax.options import OPTIONS
from reshard.formats.orbax.reader import ChunkFiles, OrbaxChunks, open_orbax
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.slices.file_digests import MetadataFiles, files_below
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.geometry.grid import Grid
from reshard.storage.location import Location


def _items(root: Location) -> tuple[Item, ...]:
    return read_container(MetadataFiles(root)).items


_MARKED = Recognised(
    count_leaves=leaf_count,
    is_ours=lambda _: True,
    is_finished=is_finished,
    items=_items,
)
_OF_ITEMS = replace(_MARKED, is_no_run=lambda _: False)


class Orbax(Format):
    """Every kind of Orbax checkpoint is read; zarr3 in plain files and in OCDBT databases is written."""

    about = About(
        name="orbax",
        title="Orbax",
        marks=f"Orbax ({', '.join(MARKERS)})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        holds_keys=True,
        options=OPTIONS,
    )

    def recognise(self, root: Location) -> Recognised | None:
        marks = marks_of(root)
        if marks is None:
            return None
        return _MARKED if marks == "top" else _OF_ITEMS

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_orbax(root, record, uri)

    def form(self, options: Mapping[str, Any], source: Reader) -> OrbaxForm:  # noqa: ARG002  of the interface
        return OrbaxForm(**options)

    def arrange(
        self, form: Form, tensor: TargetTensor, source: StoredTensor, slices: Grid
    ) -> TargetTensor:
        return arrange(cast("OrbaxForm", form), tensor, source, slices)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.orbax.write.file_map import plan_files

        return plan_files(target, cast("OrbaxForm", target.form))

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        return _folders_to_record(root, reader)


def _folders_to_record(root: Location, reader: Reader) -> list[RecordedFolder]:
    """The folders and the files to record in each, the top last."""
    chunks = cast(
        "OrbaxChunks", reader.chunks
    )  # the registry asks a format about its own readers only
    files = ChunkFiles(chunks.items)
    items = [_item_folder(root, item, files) for item in chunks.items.values()]
    folders = frozenset(item.folder for item in items)
    if "" in folders:
        return items
    others = [n for n in files_below(root, folders) if n not in OF_RECORDS]
    return [*items, RecordedFolder("", None, tuple(others))]


def _item_folder(root: Location, item: OpenItem, chunks: ChunkFiles) -> RecordedFolder:
    folder = item.item.directory
    files = tuple(_item_files(root, item, chunks))
    in_database = filter(is_data_file, files) if find_databases(root / folder) else ()
    tree = TensorTree(item.leaves, item.tensors)
    return RecordedFolder(folder, tree, files, frozenset([*in_database, *_with_values(item)]))


def _with_values(item: OpenItem) -> tuple[str, ...]:
    """The file that keeps values; it may be large, so that it is not compared whenever the checkpoint is opened."""
    keeps = any(isinstance(array.values, KeptValues) for array in item.arrays.values())
    return (AGGREGATE,) if keeps else ()


def _item_files(root: Location, item: OpenItem, chunks: ChunkFiles) -> Iterator[str]:
    folder = item.item.directory
    for name in files_below(root / folder):
        path = f"{folder}/{name}" if folder else name
        if name not in OF_RECORDS and path not in chunks:
            yield name


ORBAX = Orbax()
