"""Reading Orbax checkpoints: v0 and v1, zarr 2 and 3, OCDBT and plain files.

Opening reads metadata only: the container, each item's tree, the databases' B-trees and each
array's zarr metadata. ``locate`` then finds a chunk's bytes by a bisect (OCDBT) or one ``stat``
(plain files), and for zarr 3 shards one small read of the shard's index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, ReshardError, StorageError
from reshard.formats.base import Container, Extent, Item, Leaf, Record, StoredTensor
from reshard.formats.orbax.chunk_files import ChunkFiles
from reshard.formats.orbax.container import (
    CHECKPOINT_METADATA,
    TREE_METADATA,
    is_orbax,
    read_container,
)
from reshard.formats.orbax.folder_record import check_metadata_files
from reshard.formats.orbax.item_tensors import ArrayFiles, OpenItem, open_item
from reshard.formats.orbax.sharding_file import SHARDING
from reshard.formats.orbax.tree_metadata import ARRAY_METADATAS, STRINGS
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.formats.zarr.shard_index import ShardIndexes
from reshard.geometry.grid import Index
from reshard.storage.inside import Inside
from reshard.storage.local import reason_and_remedy

if TYPE_CHECKING:
    from reshard.formats.slices.origin import Made
    from reshard.formats.slices.slice_file import SliceFile

__all__ = ["OrbaxReader", "is_orbax", "open_orbax"]


def open_orbax(path: str, record: Record = "checked") -> OrbaxReader:
    """Open the Orbax checkpoint in the local directory ``path``.

    With one tree, tensor names are its keys joined with ``/``. With several trees, the item's name comes first. It also
    does in a checkpoint that reshard made of a part of several trees, which slices.json records. Items that are not
    trees are only listed in the container.

    Args:
        record: how to use slices.json: refuse contradictions, use the parts that fit, or use only how names are
            formed.

    Raises:
        StorageError: it is not there or cannot be read. NotACheckpointError: it contains no tree.
        IncompleteCheckpointError: it was never committed (see ``container``).
        CorruptError: metadata is damaged, contradicts itself, or differs from its record.
        FormatError: names collide, or it uses an unsupported feature.
    """
    try:
        return _open(path, Path(path).absolute(), record)
    except OSError as error:  # any error of looking at a path
        where = error.filename or path
        raise StorageError(f"{where} cannot be read: {reason_and_remedy(error)}") from error


def _open(path: str, root: Path, record: Record) -> OrbaxReader:
    if not root.is_dir():
        raise StorageError(
            f"{path} should be the directory of a checkpoint, but is not a directory"
        )
    inside = Inside(root)
    inside.check(root / CHECKPOINT_METADATA, "the checkpoint's metadata")
    container = read_container(root)
    trees = [item for item in container.items if item.is_tree]
    top = _container_record(root, trees, record)
    container = replace(container, item_names=top is not None and top.item_names)
    opened = {}
    for item in trees:
        directory = root / item.directory
        _refuse_links_out(inside, directory)
        prefix = f"{item.name}/" if container.naming_items else ""
        recorded = _recorded(directory, record)
        opened[item.name] = open_item(directory, item, prefix, recorded, check=record == "checked")
    items = tuple(opened[i.name].item if i.is_tree else i for i in container.items)
    return OrbaxReader(path, replace(container, items=items), opened)


def _container_record(root: Path, trees: Sequence[Item], record: Record) -> SliceFile | None:
    """The container's own slices.json; None if the one in its folder belongs to the tree."""
    if not all(item.directory for item in trees):
        return None
    if record != "ignored":
        return _recorded(root, record)
    try:
        return read_slices(root)
    except ReshardError:  # it will be replaced
        return None


def _recorded(directory: Path, record: Record) -> SliceFile | None:
    """The slices.json of a folder; with ``record="checked"`` the folder's metadata files are compared with it."""
    if record == "ignored":
        return None
    try:
        found = read_slices(directory)
    except FormatError:  # damage, which is reported elsewhere; the tensors may still be readable
        if record == "checked":
            raise
        return None
    if found is not None and record == "checked":
        check_metadata_files(directory, found)
    return found


def _refuse_links_out(inside: Inside, directory: Path) -> None:
    """Refuses links of metadata files that lead out of the checkpoint; values are checked when they are looked up."""
    names = (TREE_METADATA, SHARDING, STRINGS, FILE_NAME, ARRAY_METADATAS)
    files = directory.glob(f"{ARRAY_METADATAS}/process_*")
    for path in (*(directory / name for name in names), *files):
        inside.check(path, "the checkpoint's metadata")


class OrbaxReader:
    """An open Orbax checkpoint; implements ``formats.base.Reader``. Safe from any thread."""

    format = "orbax"

    def __init__(self, uri: str, container: Container, opened: Mapping[str, OpenItem]) -> None:
        items = list(opened.values())
        self.uri = uri
        self.container = container
        self.opened = opened
        self.leaves: Sequence[Leaf] = tuple(leaf for item in items for leaf in item.leaves)
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(_joined(items))
        self._arrays: dict[str, ArrayFiles] = {n: a for i in items for n, a in i.arrays.items()}
        self._shards = ShardIndexes()
        self._item_bytes = sum(item.metadata_bytes for item in items)

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory that the open checkpoint keeps, in bytes."""
        return self._item_bytes + self._shards.max_bytes

    @property
    def chunk_files(self) -> ChunkFiles:
        """Tells which paths below the checkpoint are chunks in plain files."""
        return ChunkFiles(self.opened)

    @property
    def conversion(self) -> str:
        """The conversion that made every tree of it, as their slices.json say; "" if none did, or several."""
        trees = [item for item in self.container.items if item.is_tree]
        found = {record.conversion if record else "" for record in map(self._record_of, trees)}
        return found.pop() if len(found) == 1 else ""

    @property
    def made(self) -> Made | None:
        """From which source and by which rules it was made, as the slices.json at its top says."""
        record = read_slices(Path(self.uri))
        return None if record is None else record.made

    def _record_of(self, item: Item) -> SliceFile | None:
        return read_slices(Path(self.uri, item.directory))

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
            raise CorruptError(
                f"{what}: not stored; expected it under {key!r}, since this checkpoint stores every "
                "chunk, those of fill values too; restore it from a copy"
            )
        return extent

    def copies(self, name: str) -> tuple[()]:  # noqa: ARG002  the same for every tensor
        """None: every chunk is stored once."""
        return ()

    def _array(self, name: str, index: Index) -> ArrayFiles:
        try:
            array = self._arrays[name]
        except KeyError:
            raise FormatError(f"{self.uri} has no tensor named {name!r}") from None
        parts = self.tensors[name].spec.storage.parts
        if len(index) != len(parts) or not all(
            0 <= i < n for i, n in zip(index, parts, strict=True)
        ):
            raise FormatError(
                f"{self.uri}: {name!r} has no chunk {list(index)}; its grid has {list(parts)} chunks"
            )
        return array


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
