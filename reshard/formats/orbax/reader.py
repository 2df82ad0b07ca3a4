"""Reading Orbax checkpoints: v0 and v1, zarr 2 and 3, OCDBT and plain files; and the test for files that are chunks.

Opening reads metadata only: the container, each item's tree, the databases' B-trees and each
array's zarr metadata. ``locate`` then finds a chunk's bytes by a bisect (OCDBT) or one ``stat``
(plain files), and for zarr 3 shards one small read of the shard's index.

The files of an Orbax checkpoint's folder that its slices.json records, and the refusal of others.

A slices.json records every file below its folder, except for folders with a slices.json of their own: the one of a tree
records the item, the one of the checkpoint records the markers and the items that are not trees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from operator import ge
from types import MappingProxyType

from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, ReshardError, StorageError
from reshard.formats.base import Chunks, Reader, RecordUse
from reshard.formats.contents import Container, Extent, Item, Stored, StoredTensor
from reshard.formats.marks import AGGREGATE
from reshard.formats.names import OF_RECORDS
from reshard.formats.ocdbt.index import PROCESS_PREFIX, find_databases
from reshard.formats.ocdbt.manifest import MANIFEST
from reshard.formats.orbax.aggregate_tree import KeptValues
from reshard.formats.orbax.container import metadata_of_orbax, read_container
from reshard.formats.orbax.find_arrays import ArrayFiles
from reshard.formats.orbax.item_tensors import OpenItem, open_item
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.tree_metadata import ARRAY_METADATAS
from reshard.formats.slices.file_digests import REMEDY, files_below
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import NOTHING, SliceFile
from reshard.formats.zarr.metadata import ZarrArray
from reshard.formats.zarr.values import PlainFiles, ShardIndexes
from reshard.geometry.grid import Index
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
    # The file that keeps values may be large, so that it is not compared whenever the checkpoint is opened.
    keeps = any(isinstance(array.values, KeptValues) for array in item.arrays.values())
    uncompared = frozenset([*in_database, *([AGGREGATE] if keeps else [])])
    return RecordedFolder(folder, tree, files, uncompared)


def _item_files(root: Location, item: OpenItem, is_chunk: Callable[[str], bool]) -> Iterator[str]:
    folder = item.item.directory
    for name in files_below(root / folder):
        path = f"{folder}/{name}" if folder else name
        if name not in OF_RECORDS and not is_chunk(path):
            yield name


def open_orbax(folder: Location, record: RecordUse = "checked", uri: str = "") -> Reader:
    """Open the Orbax checkpoint in a folder.

    With one tree, tensor names are its keys joined with ``/``. With several trees, the item's name comes first. It also
    does in a checkpoint that reshard made of a part of several trees, which slices.json records. Items that are not
    trees are only listed in the container.

    Args:
        folder: viewed as one checkpoint, so that its files are in it.
        record: the use of slices.json: refuse contradictions, use the parts that fit, or take only the form of
            names.
        uri: the folder as the user named it.

    Raises:
        StorageError: it is not there or cannot be read. NotACheckpointError: it contains no tree.
        IncompleteCheckpointError: it was never committed (see ``container``).
        CorruptError: metadata is damaged, contradicts itself, or differs from its record.
        FormatError: names collide, or it uses an unsupported feature.
    """
    uri = uri or str(folder)
    if not folder.is_folder():
        raise StorageError(f"{uri} should be the directory of a checkpoint, but is not a directory")
    top = MetadataFiles(folder, _METADATA_FOLDERS)
    container, records = read_container(top), _Records()
    trees = [item for item in container.items if item.is_tree]
    is_of_container = "" not in [item.directory for item in trees]
    recorded = _container_record(top, records, record) if is_of_container else None
    container = replace(container, item_names=recorded is not None and recorded.item_names)
    naming = bool(container.naming_items)
    opened = {item.name: _opened(top, item, records, record, is_named=naming) for item in trees}
    top.check_unread()
    items = tuple(opened[i.name].item if i.is_tree else i for i in container.items)
    return _reader(uri, folder, replace(container, items=items), opened, records)


def _opened(
    top: MetadataFiles, item: Item, records: _Records, record: RecordUse, *, is_named: bool
) -> OpenItem:
    """An item that is a tree; ``is_named``: names of tensors begin with its own."""
    folder = top.folder / item.directory
    files = MetadataFiles(folder, _METADATA_FOLDERS) if item.directory else top
    prefix = f"{item.name}/" if is_named else ""
    recorded = _recorded(files, records, item.directory, record)
    opened = open_item(files, item, prefix, recorded, check=record == "checked")
    files.check_unread()
    return opened


def _reader(
    uri: str,
    folder: Location,
    container: Container,
    opened: Mapping[str, OpenItem],
    records: _Records,
) -> Reader:
    origins = {records.origin(one.item.directory).conversion for one in opened.values()}
    chunks, top = OrbaxChunks(uri, opened), records.origin("")
    return Reader(
        uri=uri,
        format="orbax",
        container=container,
        tensors=chunks.tensors,
        leaves=tuple(chain.from_iterable([one.leaves for one in opened.values()])),
        chunks=chunks,
        metadata_bytes=folder.kept_bytes + chunks.metadata_bytes,
        conversion=origins.pop() if len(origins) == 1 else "",
        made=top.made,
        takes_record=True,
        metadata=metadata_of_orbax(container, top.metadata),
    )


_METADATA_FOLDERS = frozenset({ARRAY_METADATAS})


def _container_record(
    files: MetadataFiles, records: _Records, record: RecordUse
) -> SliceFile | None:
    """The container's own slices.json, if its folder is not also that of a tree."""
    if record != "ignored":
        return _recorded(files, records, "", record)
    try:
        return records.read(files, "")
    except ReshardError:  # it will be replaced
        return None


def _recorded(
    files: MetadataFiles, records: _Records, folder: str, record: RecordUse
) -> SliceFile | None:
    """The slices.json of a folder; with ``record="checked"`` its metadata files are compared with it when they are read."""
    if record == "ignored":
        return None
    try:
        found = records.read(files, folder)
    except FormatError:  # damage, which is reported elsewhere; the tensors may still be readable
        if record == "checked":
            raise
        return None
    if found is not None and record == "checked":
        files.expect(found.files)
        refuse_unrecorded(files.folder, found)
    return found


class _Records:
    """The slices.json of a checkpoint's folders; keeps the origin that each records."""

    def __init__(self) -> None:
        self._origins: dict[str, SliceFile] = {}

    def read(self, files: MetadataFiles, folder: str) -> SliceFile | None:
        """The record beside these files, those of a folder below the checkpoint; None if there is none."""
        found = read_slices(files.folder) if files.is_recorded else None
        if found is not None:
            self._origins[folder] = replace(found, tensors={}, files={}, data_files=None)
        return found

    def origin(self, folder: str) -> SliceFile:
        """The record of the folder without tensors and files, as far as it was read."""
        return self._origins.get(folder, NOTHING)


class OrbaxChunks(Chunks):
    """The chunks of an open Orbax checkpoint.

    Attributes:
        items: the open trees, by name of the item.
        tensors: of all of them.
    """

    def __init__(self, uri: str, items: Mapping[str, OpenItem]) -> None:
        self._uri = uri
        self.items = items
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(_joined(list(items.values())))
        self._arrays: dict[str, ArrayFiles] = {
            n: a for item in items.values() for n, a in item.arrays.items()
        }
        self._shards = ShardIndexes()

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory that the open trees keep."""
        return self._shards.max_bytes + sum(item.metadata_bytes for item in self.items.values())

    def chunk_test(self) -> Callable[[str], bool]:
        """Tells chunks in plain files."""
        return ChunkFiles(self.items).__contains__

    def locate(self, name: str, index: Index) -> Extent | None:
        """The location of the encoded chunk at ``index`` of the tensor's storage grid.

        None for a chunk that is not stored and may be missing. For tensors that only TensorStore decodes, the location
        is that of the whole stored value.

        Raises:
            FormatError: there is no such tensor or chunk.
            CorruptError: the chunk is missing but must be there, or its file is truncated.
        """
        array = self._array(name, index)
        indexing = array.zarr.indexing
        parts = indexing.parts if indexing else (1,) * len(index)
        position = tuple(i // p for i, p in zip(index, parts, strict=True))
        key = array.key(array.zarr.value_key(position))
        what = f"tensor {name!r}, chunk {list(index)}"
        extent = array.values.find(key, what)
        if extent is not None and indexing is not None:
            extent = self._shards.inner(extent, indexing, _number(index, parts), what)
        if extent is None and not self.tensors[name].may_be_missing:
            raise _not_stored(what, key, array)
        return extent

    def lacking(self, names: Iterable[str]) -> dict[str, Stored]:
        """The tensors, among these, with chunks that are not stored."""
        found = ((name, stored_values(self._arrays[name])) for name in names)
        return {name: stored for name, stored in found if stored.missing}

    def with_missing(self, reader: Reader, may_be_missing: bool) -> Reader:
        """The same checkpoint, in which any chunk that is not stored means the fill value, or is damage."""
        if all(t.may_be_missing == may_be_missing for t in self.tensors.values()):
            return reader
        opened = {n: _with_missing(item, may_be_missing) for n, item in self.items.items()}
        chunks = OrbaxChunks(self._uri, opened)
        nbytes = reader.metadata_bytes - self.metadata_bytes + chunks.metadata_bytes
        return replace(reader, tensors=chunks.tensors, chunks=chunks, metadata_bytes=nbytes)

    def folders_to_record(self, _reader: Reader, root: Location, /) -> list[RecordedFolder]:
        return folders_to_record(root, self.items.values(), self.chunk_test())

    def _array(self, name: str, index: Index) -> ArrayFiles:
        try:
            array = self._arrays[name]
        except KeyError:
            raise FormatError(f"{self._uri} has no tensor named {name!r}") from None
        parts = self.tensors[name].spec.storage.parts
        if len(index) != len(parts) or min(index, default=0) < 0 or any(map(ge, index, parts)):
            raise FormatError(
                f"{self._uri}: {name!r} has no chunk {list(index)}; its grid has {list(parts)} chunks"
            )
        return array


def _not_stored(what: str, key: str, array: ArrayFiles) -> CorruptError:
    some = ""
    with suppress(StorageError):  # the folder may be gone too
        found = stored_values(array)
        some = f", as are {found.missing:,} of all {found.chunks:,}" if found.missing > 1 else ""
    return CorruptError(
        f"{what}: not stored{some}; expected it under {key!r}, since this checkpoint stores every chunk, those of fill values "
        'too; restore it from a copy, or take the fill value in its place (missing_chunks="allow")'
    )


def _with_missing(item: OpenItem, may_be_missing: bool) -> OpenItem:
    """An item with other rules about missing chunks; plain files that may be missing are listed, as when it is opened."""
    tensors = {n: replace(t, may_be_missing=may_be_missing) for n, t in item.tensors.items()}
    item = replace(item, tensors=tensors)
    files = next((a.values for a in item.arrays.values() if isinstance(a.values, PlainFiles)), None)
    if not may_be_missing or files is None:
        return item
    listed = files.listed()  # all arrays of an item are in plain files, or none
    arrays = {name: replace(array, values=listed) for name, array in item.arrays.items()}
    nbytes = item.metadata_bytes - files.metadata_bytes + listed.metadata_bytes
    return replace(item, arrays=arrays, metadata_bytes=nbytes)


def _joined(items: Sequence[OpenItem]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for item in items:
        tensors.update(item.tensors)
    return tensors


def _number(index: Index, parts: Sequence[int]) -> int:
    """Row-major number, within its shard, of the inner chunk at ``index`` of the whole grid."""
    number = 0
    for i, n in zip(index, parts, strict=True):
        number = number * n + i % n
    return number


_NUMBER = r"(0|[1-9][0-9]{0,18})"


def is_value(key: str, zarr: ZarrArray) -> bool:
    """True for the key, below the array's own, of a value within the array's bounds."""
    match = _pattern(len(zarr.shape), zarr.separator, zarr.prefixed).fullmatch(key)
    return match is not None and all(
        int(position) * value < size
        for position, value, size in zip(match.groups(), zarr.value_shape, zarr.shape, strict=True)
    )


def value_count(zarr: ZarrArray) -> int:
    """The number of values of an array whose values are all stored."""
    return math.prod(-(-n // v) for n, v in zip(zarr.shape, zarr.value_shape, strict=True))


def stored_values(array: ArrayFiles) -> Stored:
    """The number of values of an array, and of those that are not stored, by one look at all of its keys."""
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
        """True if a path below the checkpoint is a chunk within its tensor's bounds."""
        steps = path.split("/")
        for depth in range(len(steps) - 1, -1, -1):
            array = self._arrays.get("/".join(steps[:depth]))
            if array is not None and is_value("/".join(steps[depth:]), array.zarr):
                return True
        return False
