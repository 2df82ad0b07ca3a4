"""The last step of writing: each tree's metadata, its slice metadata, and the markers last of all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Item, Style
from reshard.formats.ocdbt.index import find_databases
from reshard.formats.orbax.container import CHECKPOINT_METADATA, V1_MARKER
from reshard.formats.orbax.folder_record import is_data_file
from reshard.formats.orbax.write.copy_items import copied_folders
from reshard.formats.orbax.write.item_tree import V1_HANDLERS, ItemTree, WrittenLeaf, item_directory
from reshard.formats.orbax.write.metadata import metadata_files, string_document
from reshard.formats.slices.file_digests import digests_of_files, files_below
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    SliceEntry,
    SliceFile,
    digest_of,
    render_slices,
    split_of_shards,
    target_entry,
)
from reshard.storage.commit_markers import COMMIT_MARKER, COMMITTED
from reshard.storage.location import Location

_TIMES = ("init_timestamp_nsecs", "commit_timestamp_nsecs")

_TREE_HANDLER: dict[Style, str] = {
    "v0": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
    "v1": "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler",
}


def finish_checkpoint(
    root: Location,
    target: TargetCheckpoint,
    trees: Sequence[ItemTree],
    digests: Mapping[str, str],
    *,
    arrays: Mapping[str, Mapping[str, bytes]],
    ocdbt: bool,
) -> dict[str, bytes]:
    """Write everything that is not tensor bytes, but the markers, which are returned by their paths.

    Args:
        digests: CRC-64/NVME of each tensor, by name, 16 hex digits.
        arrays: each item's array metadata in files, by item name and path in the item.
    """
    markers = _markers(target, trees)
    slices_of: dict[str, bytes] = {}
    for tree in trees:
        files = metadata_files(tree, ocdbt=ocdbt)
        for name, data in files.items():
            _write(root, tree.below(name), data)
        own = {n.removeprefix(tree.below("")): d for n, d in markers.items() if _is_of(n, tree)}
        known = {**arrays.get(tree.item.name, {}), **files, **own}
        slices = slice_file(tree, digests, known, _database_digests(root / tree.directory))
        slices = replace(slices, conversion=target.conversion)
        if not tree.directory:
            slices = replace(slices, made=target.made, metadata=target.metadata)
        slices_of[tree.below(FILE_NAME)] = render_slices(slices)
    if FILE_NAME not in slices_of:
        slices_of[FILE_NAME] = _container_slices(root, target, trees, markers, slices_of)
    for name, data in slices_of.items():
        _write(root, name, data)
    return markers


def _is_of(name: str, tree: ItemTree) -> bool:
    return not tree.directory or name.startswith(tree.below(""))


def _database_digests(folder: Location) -> dict[str, str]:
    """The digest of each file of the databases in an item's folder; none if chunks are plain files."""
    if not find_databases(folder):
        return {}
    return digests_of_files(folder, (n for n in files_below(folder) if is_data_file(n)))


def _container_slices(
    root: Location,
    target: TargetCheckpoint,
    trees: Sequence[ItemTree],
    markers: Mapping[str, bytes],
    slices_of: Mapping[str, bytes],
) -> bytes:
    """The record of a checkpoint of several items; it covers everything outside of its trees."""
    own = {n: d for n, d in markers.items() if not any(_is_of(n, tree) for tree in trees)}
    files = {name: digest_of(data) for name, data in {**own, **slices_of}.items()}
    for folder in copied_folders(target):
        names = (f"{folder}/{name}" for name in files_below(root / folder))
        files |= digests_of_files(root, names)
    item_names = bool(target.container.naming_items)
    return render_slices(
        SliceFile({}, files, {}, item_names=item_names, made=target.made, metadata=target.metadata)
    )


def check_tree(tree: ItemTree) -> None:
    """Raises the errors that ``finish_checkpoint`` would raise for this tree after its data is written."""
    string_document(tree)
    for _, tensor in tree.tensors:
        split_of_shards(tensor)


def slice_file(
    tree: ItemTree,
    digests: Mapping[str, str],
    files: Mapping[str, bytes],
    data_files: Mapping[str, str] | None = None,
) -> SliceFile:
    """The item's slice metadata, with a digest of each metadata file.

    Args:
        data_files: digests of the databases' files; None if not every file is recorded.
    """
    entries = [
        slice_entry(leaf, tensor, digests.get(leaf.leaf.name)) for leaf, tensor in tree.tensors
    ]
    metadata = {name: digest_of(data) for name, data in files.items()}
    return SliceFile({e.name: e for e in entries}, metadata, data_files)


def slice_entry(leaf: WrittenLeaf, target: TargetTensor, digest: str | None) -> SliceEntry:
    """The entry of a tensor in slices.json."""
    return target_entry(leaf.keys, target, digest, memory_kind=leaf.leaf.meta.get("memory_kind"))


def _markers(target: TargetCheckpoint, trees: Sequence[ItemTree]) -> dict[str, bytes]:
    """The marker files that make readers accept the checkpoint, by path below it, in the order of writing."""
    container = target.container
    present = {tree.item.name for tree in trees} | target.copied.keys()
    items = [item for item in container.items if item.name in present]
    markers: dict[str, bytes] = {}
    for tree in trees if container.style != "v1" else ():
        if tree.directory:
            markers[tree.below(COMMIT_MARKER)] = COMMITTED
    markers[CHECKPOINT_METADATA] = _checkpoint_metadata(container, items)
    if container.style == "v1":
        markers[V1_MARKER] = b""
    return markers | {COMMIT_MARKER: COMMITTED}


def _write(root: Location, name: str, data: bytes) -> None:
    path = root / name
    if "/" in name:
        path.parent.make_folder()
    path.write(data)


def _checkpoint_metadata(container: Container, items: Iterable[Item]) -> bytes:
    """``_CHECKPOINT_METADATA``: the source's, with the handlers of the items that were written.

    Time stamps are the source's, or null if it has none, so that converting twice gives equal files. A tree that was
    never saved before gets the time of now.
    """
    now = time.time_ns()
    document = {
        "item_handlers": _item_handlers(container, items),
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": now,
        "commit_timestamp_nsecs": now,
        "custom_metadata": {},
    }
    times = {k: v for k, v in container.meta.items() if k in _TIMES}
    recorded = {k: v for k, v in container.meta.items() if k != "item_handlers" and v is not None}
    recorded |= times
    return json.dumps(document | recorded).encode()


def _item_handlers(container: Container, items: Iterable[Item]) -> str | dict[str, str]:
    """One handler for a checkpoint that is one tree, else a handler by item folder."""
    found = {
        item_directory(container, item): _handler(container.style or "v0", item) for item in items
    }
    return found[""] if "" in found else {k: v for k, v in found.items() if v}


def _handler(style: Style, item: Item) -> str:
    """The item's recorded handler; the default if a tree's handler is of the other style."""
    fits = item.handler.startswith(V1_HANDLERS) == (style == "v1")
    return item.handler if item.handler and (fits or not item.is_tree) else _default(style, item)


def _default(style: Style, item: Item) -> str:
    return _TREE_HANDLER[style] if item.is_tree else ""
