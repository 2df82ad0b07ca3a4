"""The files of an Orbax checkpoint's folder that its slices.json records, and the check of the metadata among them.

A slices.json records every file below its folder, except for folders with a slices.json of their own: the one of a tree
records the item, the one of the checkpoint records the markers and the items that are not trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reshard.errors import CorruptError
from reshard.formats.ocdbt.index import PROCESS_PREFIX
from reshard.formats.ocdbt.manifest import MANIFEST
from reshard.formats.slices.file_digests import REMEDY, check_file, files_below
from reshard.formats.slices.slice_file import SliceFile
from reshard.storage.local import size_if_there

_ITEM_FILES = ("_METADATA", "_sharding", "_strings.json", MANIFEST)
_ARRAY_METADATAS = "array_metadatas"


def check_metadata_files(folder: Path, record: SliceFile) -> None:
    """Raises an error for a folder whose metadata files differ from their record.

    Each array's own metadata is compared when it is read; items that are not trees are compared when they are copied.
    Raises CorruptError naming the file, StorageError if it cannot be read.
    """
    for name, digest in record.files.items():
        if "/" not in name or name.startswith(f"{_ARRAY_METADATAS}/"):
            check_file(folder / name, digest, "the file")
    if record.data_files is not None:
        _refuse_unrecorded(folder, record)


def _refuse_unrecorded(folder: Path, record: SliceFile) -> None:
    """Refuses a file that readers would use but that was not there when the folder was recorded."""
    if not record.tensors:
        return
    known = record.every_file
    for name in _files_in_use(folder):
        if name not in known:
            raise CorruptError(
                f"the file {folder / name} is not recorded in slices.json, so it was put there later; "
                f"remove it, or {REMEDY}"
            )


def _files_in_use(folder: Path) -> Iterator[str]:
    yield from (name for name in _ITEM_FILES if size_if_there(folder / name) is not None)
    if (folder / _ARRAY_METADATAS).is_dir():
        yield from (f"{_ARRAY_METADATAS}/{n}" for n in files_below(folder / _ARRAY_METADATAS))
    for database in sorted(folder.glob(f"{PROCESS_PREFIX}*/{MANIFEST}")):
        yield str(database.relative_to(folder))


def is_data_file(name: str) -> bool:
    """Whether a file of an item, by its path in it, is part of an OCDBT database."""
    first, _, rest = name.partition("/")
    return name == MANIFEST or (first == "d" and bool(rest)) or first.startswith(PROCESS_PREFIX)
