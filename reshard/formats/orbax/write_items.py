"""The trees of a target checkpoint as they are written: folders and names; unsafe names are refused.

Copying an item that is not a tree (JSON, a dataset iterator's state, ...) unchanged, file by file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Item, Leaf, PathKey
from reshard.formats.leaf_paths import settle_sequences, tree_order
from reshard.formats.orbax.container import check_leaves, check_path, has_bytes, param_name
from reshard.formats.slices.file_digests import REMEDY, check_digest, digests_of_files, files_below
from reshard.formats.slices.parse import read_slices
from reshard.geometry.sizes import format_bytes
from reshard.storage.base import FileStatus
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.copying import copy_file
from reshard.storage.local.target_checks import refuse_folded
from reshard.storage.location import Location, locate


def copy_items(target: TargetCheckpoint, root: Location) -> None:
    """Copy each item that is not a tree to its folder below the root."""
    for item in target.container.items:
        if not item.is_tree and item.name in target.copied:
            folder = root / item_directory(target.container, item)
            source = locate(target.copied[item.name])
            copy_item(source, folder, item.name)
            _check_copied(source, folder, item.name)


def _check_copied(source: Location, copy: Location, item: str) -> None:
    """Raises CorruptError if the source has a record and the copy differs from it."""
    record = read_slices(source.parent)
    if record is None or record.data_files is None:
        return
    top = f"{source.name}/"
    recorded = {n.removeprefix(top): d for n, d in record.files.items() if n.startswith(top)}
    found = digests_of_files(copy, files_below(copy))
    for name in sorted(recorded.keys() | found.keys()):
        what = f"item {item!r}: the file {source / name}"
        if name not in found:
            raise CorruptError(f"{what} is missing, but is recorded in slices.json; {REMEDY}")
        if name not in recorded:
            raise CorruptError(f"{what} is not recorded in slices.json; remove it, or {REMEDY}")
        check_digest(found[name], recorded[name], what)


def copied_folders(target: TargetCheckpoint) -> list[str]:
    """The folders below the root of the items that are not trees."""
    return [
        item_directory(target.container, item)
        for item in target.container.items
        if not item.is_tree and item.name in target.copied
    ]


def copy_item(source: Location, target: Location, name: str) -> None:
    """Copy a folder without syncing, its marker last; running it again gives the same result.

    A link to a file inside the folder is copied as that file. Raises FormatError if a link leads out of the folder or
    to a folder, or if an entry is neither file nor folder; StorageError if a store refuses.
    """
    what = f"item {name!r}"
    if not source.is_folder():
        raise StorageError(
            f"{what} was at {source} when the checkpoint was opened and is gone now; keep the checkpoint until it is read, "
            "then run again"
        )
    folder = source.view()
    found = dict(_found(folder, "", what))
    _refuse_without_space(found, source, target, what)
    target.make_folder()
    refuse_folded(target, found)
    for path in sorted(found, key=COMMIT_MARKER.__eq__):
        status = found[path]
        if status.kind == "folder":
            (target / path).make_folder()
        else:
            copy_file(folder / path, target / path, status, what)


def _refuse_without_space(
    found: dict[str, FileStatus], source: Location, target: Location, what: str
) -> None:
    """Compares the size of the files with the free space; a sparse file takes little space, but its copy does not."""
    need = sum(status.nbytes for status in found.values())
    free = target.free_bytes()
    if free is not None and need > free:
        raise StorageError(
            f"{what} in {source} contains files of {format_bytes(need)}, but the file system of {target} has "
            f"only {format_bytes(free)} free; free space, or choose another target"
        )


def _found(folder: Location, below: str, what: str) -> Iterator[tuple[str, FileStatus]]:
    """Every folder and file below a folder, by path; a folder before its content."""
    for entry in (folder / below).entries():
        path = f"{below}/{entry.name}" if below else entry.name
        status = (folder / path).status(what)
        if entry.is_link and (status is None or status.kind != "file"):
            raise FormatError(
                f"{what} contains the symbolic link {folder / path}, which leads to no file inside the item; "
                f"replace it by the file that it points to"
            )
        if status is None or status.kind == "other":
            raise FormatError(
                f"{what} contains {folder / path}, which is neither a file nor a folder and cannot be "
                f"copied; remove it from the source"
            )
        yield path, status
        if status.kind == "folder":
            yield from _found(folder, path, what)


V1_ITEM = "state"
"""The folder of a v1 container for a tree that has no name of its own."""

V1_HANDLERS = "orbax.checkpoint.experimental.v1."
"""The prefix of the names of v1 handlers."""

_CONTAINER_FILES = frozenset({"_CHECKPOINT_METADATA", "commit_success.txt", "orbax.checkpoint"})


class WrittenLeaf(Struct, frozen=True):
    """A leaf with its path in the written tree.

    Attributes:
        path: its keys; a key is a position only if the whole sequence is there.
        param: Orbax's dotted name of it.
        target: its tensor, or None for a string, None, an empty container or the like.
    """

    leaf: Leaf
    path: tuple[PathKey, ...]
    param: str
    target: TargetTensor | None

    @property
    def folder(self) -> str:
        """The folder of its files or keys: Orbax stores ``a/`` in ``a``, and a leaf without a name at the top of the item."""
        return self.param.removesuffix("/")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(step.key for step in self.path)


class ItemTree(Struct, frozen=True):
    """An item that is a tree: its folder below the checkpoint, and its leaves in tree order.

    Stock Orbax rebuilds lists by appending, so the order matters.
    """

    item: Item
    directory: str
    leaves: tuple[WrittenLeaf, ...]

    @property
    def tensors(self) -> list[tuple[WrittenLeaf, TargetTensor]]:
        return [(leaf, leaf.target) for leaf in self.leaves if leaf.target is not None]

    def below(self, path: str) -> str:
        """A path in this item, from the checkpoint's root."""
        return f"{self.directory}/{path}" if self.directory else path


def item_trees(target: TargetCheckpoint) -> list[ItemTree]:
    """The trees to write, those without any leaf left out.

    Raises FormatError, naming the leaves, if names collide, are unsafe, or do not match the tensors.
    """
    check_items(target.container)
    by_item: dict[str, list[Leaf]] = defaultdict(list)
    for leaf in target.leaves:
        by_item[leaf.item].append(leaf)
    trees = [
        _item_tree(item, item_directory(target.container, item), by_item.pop(item.name), target)
        for item in target.container.items
        if item.is_tree and item.name in by_item
    ]
    _check_complete(target, trees, by_item)
    return trees


def item_directory(container: Container, item: Item) -> str:
    """The folder of an item; in v1 it always has a name.

    The only tree of a v1 checkpoint becomes the single item of a v0 checkpoint, since v0 does not look for it in a
    folder; but a tree whose names begin with the item keeps its folder.
    """
    if container.style == "v1":
        return item.directory or V1_ITEM
    alone = len(container.items) == 1 and item.is_tree and not container.item_names
    return "" if alone and item.handler.startswith(V1_HANDLERS) else item.directory


def check_items(container: Container) -> None:
    """Raises FormatError for items whose folders are unsafe or collide."""
    seen: dict[str, str] = {}
    for item in container.items:
        directory = item_directory(container, item)
        if directory == "" and len(container.items) == 1 and item.is_tree:
            continue
        check_path(directory, f"item {item.name!r}")
        if "/" in directory or directory in _CONTAINER_FILES or directory in seen:
            raise FormatError(
                f"item {item.name!r} cannot be written to the folder {directory!r}: it must be a "
                f"single name that no other item or metadata file has"
            )
        seen[directory] = item.name


def _item_tree(
    item: Item, directory: str, leaves: Sequence[Leaf], target: TargetCheckpoint
) -> ItemTree:
    leaves = _without_placeholders(leaves)
    check_leaves(leaves)
    paths = settle_sequences(leaf.path for leaf in leaves)
    written = tuple(
        WrittenLeaf(leaves[i], paths[i], param_name(leaves[i].path), _target_of(leaves[i], target))
        for i in tree_order(paths)
    )
    return ItemTree(item, directory, written)


def _without_placeholders(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Leaves without empty containers that other leaves now fill: readers skip or trip over them."""
    keys = [tuple(step.key for step in leaf.path) for leaf in leaves]
    inner = {path[:depth] for path in keys for depth in range(len(path))}
    return [
        leaf
        for leaf, path in zip(leaves, keys, strict=True)
        if path not in inner or has_bytes(leaf)
    ]


def _target_of(leaf: Leaf, target: TargetCheckpoint) -> TargetTensor | None:
    if not leaf.tensor:
        return None
    try:
        return target.tensors[leaf.name]
    except KeyError:
        raise FormatError(
            f"leaf {leaf.name!r} is a tensor, but its shape and chunks are not known; it "
            f"would be lost"
        ) from None


def _check_complete(
    target: TargetCheckpoint, trees: Sequence[ItemTree], astray: dict[str, list[Leaf]]
) -> None:
    if astray:
        item, leaves = next(iter(astray.items()))
        raise FormatError(
            f"leaf {leaves[0].name!r} belongs to the item {item!r}, but the container has no such "
            f"tree; it has {[i.name for i in target.container.items]}"
        )
    if not any(tree.leaves for tree in trees):
        raise FormatError("nothing is left to write: the target tree has no leaf")
    written = {leaf.leaf.name for tree in trees for leaf in tree.leaves}
    lost = sorted(target.tensors.keys() - written)
    if lost:
        raise FormatError(
            f"tensor {lost[0]!r} has no leaf in the target tree; it would be lost ({len(lost)} such)"
        )
