"""The files of an Orbax checkpoint's folder that its slices.json records, and the refusal of others.

A slices.json records every file below its folder, except for folders with a slices.json of their own: the one of a tree
records the item, the one of the checkpoint records the markers and the items that are not trees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from reshard.errors import CorruptError
from reshard.formats.ocdbt.index import PROCESS_PREFIX, find_databases
from reshard.formats.ocdbt.manifest import MANIFEST
from reshard.formats.orbax.aggregate_file import AGGREGATE
from reshard.formats.orbax.aggregate_tree import KeptValues
from reshard.formats.orbax.item_tensors import OpenItem
from reshard.formats.orbax.tree_metadata import ARRAY_METADATAS
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.slices.file_digests import REMEDY, files_below
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import SliceFile
from reshard.storage.location import Location

_ITEM_FILES = ("_METADATA", "_sharding", "_strings.json", AGGREGATE, MANIFEST)


def refuse_unrecorded(folder: Location, record: SliceFile) -> None:
    """Raises CorruptError for a file that readers would use but that was not there when the folder was recorded."""
    if record.data_files is None or not record.tensors:
        return
    known = record.every_file
    for name in _files_in_use(folder):
        if name not in known:
            raise CorruptError(
                f"the file {folder / name} is not recorded in slices.json, so it was put there later; "
                f"remove it, or {REMEDY}"
            )


def _files_in_use(folder: Location) -> Iterator[str]:
    yield from (name for name in _ITEM_FILES if (folder / name).is_file())
    if (folder / ARRAY_METADATAS).is_folder():
        yield from (f"{ARRAY_METADATAS}/{n}" for n in files_below(folder / ARRAY_METADATAS))
    for entry in folder.entries():
        manifest = f"{entry.name}/{MANIFEST}"
        if entry.name.startswith(PROCESS_PREFIX) and (folder / manifest).exists():
            yield manifest


def is_data_file(name: str) -> bool:
    """True if a file of an item, by its path in it, is part of an OCDBT database."""
    first, _, rest = name.partition("/")
    return name == MANIFEST or (first == "d" and bool(rest)) or first.startswith(PROCESS_PREFIX)


def folders_to_record(
    root: Location, opened: Collection[OpenItem], is_chunk: Callable[[str], bool]
) -> list[RecordedFolder]:
    """The folders and the files to record in each, the top last; ``is_chunk`` tells files that the digests of tensors cover."""
    items = [_item_folder(root, item, is_chunk) for item in opened]
    folders = frozenset(item.folder for item in items)
    if "" in folders:
        return items
    others = [n for n in files_below(root, folders) if n not in OF_RECORDS]
    return [*items, RecordedFolder("", None, tuple(others))]


def _item_folder(root: Location, item: OpenItem, is_chunk: Callable[[str], bool]) -> RecordedFolder:
    folder = item.item.directory
    files = tuple(_item_files(root, item, is_chunk))
    in_database = filter(is_data_file, files) if find_databases(root / folder) else ()
    tree = TensorTree(item.leaves, item.tensors)
    return RecordedFolder(folder, tree, files, frozenset([*in_database, *_with_values(item)]))


def _with_values(item: OpenItem) -> tuple[str, ...]:
    """The file that keeps values; it may be large, so that it is not compared whenever the checkpoint is opened."""
    keeps = any(isinstance(array.values, KeptValues) for array in item.arrays.values())
    return (AGGREGATE,) if keeps else ()


def _item_files(root: Location, item: OpenItem, is_chunk: Callable[[str], bool]) -> Iterator[str]:
    folder = item.item.directory
    for name in files_below(root / folder):
        path = f"{folder}/{name}" if folder else name
        if name not in OF_RECORDS and not is_chunk(path):
            yield name
