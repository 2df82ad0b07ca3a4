"""The folders of an Orbax checkpoint that get a slices.json, with the files that each records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from reshard.formats.base import Reader
from reshard.formats.ocdbt.index import find_databases
from reshard.formats.orbax.aggregate_file import AGGREGATE
from reshard.formats.orbax.aggregate_values import KeptValues
from reshard.formats.orbax.chunk_files import ChunkFiles
from reshard.formats.orbax.folder_record import is_data_file
from reshard.formats.orbax.item_tensors import OpenItem
from reshard.formats.orbax.reader import OrbaxChunks
from reshard.formats.slices.file_digests import files_below
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import FILE_NAME, PARTIAL_NAME
from reshard.storage.location import Location


def folders_to_record(root: Location, reader: Reader) -> list[RecordedFolder]:
    """The folders and the files to record in each, the top last."""
    chunks = cast(
        "OrbaxChunks", reader.chunks
    )  # the registry asks a format about its own readers only
    files = ChunkFiles(chunks.items)
    items = [_item_folder(root, item, files) for item in chunks.items.values()]
    folders = frozenset(item.folder for item in items)
    if "" in folders:
        return items
    others = [n for n in files_below(root, folders) if n not in (FILE_NAME, PARTIAL_NAME)]
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
        if name not in (FILE_NAME, PARTIAL_NAME) and path not in chunks:
            yield name
