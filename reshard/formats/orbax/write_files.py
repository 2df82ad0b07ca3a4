"""The files of an Orbax target: zarr3 arrays, each chunk in a file of its own or in a database for each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.errors import shorten
from reshard.formats.base import TargetCheckpoint
from reshard.formats.file_map import ChunkChecksum, FileMap, Place
from reshard.formats.leaf_paths import refuse_long
from reshard.formats.orbax.container import (
    ITEM_FILES,
    check_files,
    check_path,
    is_array_handler,
    with_custom_metadata,
)
from reshard.formats.orbax.format import OrbaxForm
from reshard.formats.orbax.tree_metadata import refuse_odd, refuse_unsafe
from reshard.formats.orbax.write_items import ItemTree, copy_items, item_trees
from reshard.formats.orbax.write_metadata import check_tree, finish_checkpoint
from reshard.formats.zarr.zarr3_json import chunk_folders, chunk_key, zarr_json
from reshard.geometry.grid import Index
from reshard.storage.location import Location, join


def plan_files(target: TargetCheckpoint, form: OrbaxForm) -> FileMap:
    """The files of a checkpoint that stock Orbax restores; nothing is written yet.

    Raises FormatError, naming the tensor, for names that collide or are unsafe and for arrays that
    zarr3 cannot hold; LayoutError if a layout does not divide its tensor.
    """
    target = with_custom_metadata(target)
    trees = item_trees(target)
    for tree in trees:
        check_tree(tree)
        _check_names(tree, form)
    arrays = {
        tree.item.name: {
            join(leaf.folder, "zarr.json"): zarr_json(tensor.spec, tensor.encoding)
            for leaf, tensor in tree.tensors
        }
        for tree in trees
    }
    folders = {
        leaf.leaf.name: join(tree.directory, leaf.folder)
        for tree in trees
        for leaf, _ in tree.tensors
    }
    planned = _Planned(target, tuple(trees), arrays, folders)
    return _in_databases(planned) if form.ocdbt else _in_files(planned)


def _check_names(tree: ItemTree, form: OrbaxForm) -> None:
    for leaf in tree.leaves:
        if leaf.target is None or form.ocdbt:  # it has no file, but a name that is read
            where = f"the leaf {leaf.leaf.name[:200]!r}"
            if leaf.target is None:
                refuse_unsafe(leaf.param, where)
            elif leaf.folder:
                check_path(leaf.folder, f"tensor {shorten(leaf.leaf.name)}", is_file=False)
            refuse_long(leaf.param)
            refuse_odd(leaf.param, where)
    if not form.ocdbt:
        names = [(leaf.folder, leaf.leaf.name) for leaf, _ in tree.tensors]
        check_files(names, is_array=_is_array(tree))


def _is_array(tree: ItemTree) -> bool:
    """True if the item is one array; old versions of Orbax record no handler of it."""
    handler = tree.item.handler
    return len(tree.leaves) == 1 and (not handler or is_array_handler(handler))


class _Planned(Struct, frozen=True):
    """The trees of a target.

    Attributes:
        arrays: the zarr.json of each array, by item and by path in it.
        folders: of each tensor's chunks, below the root.
    """

    target: TargetCheckpoint
    trees: Sequence[ItemTree]
    arrays: Mapping[str, Mapping[str, bytes]]
    folders: Mapping[str, str]

    def key(self, name: str, index: Index) -> str:
        """The key of a chunk, below its array."""
        return chunk_key(self.target.tensors[name].spec.storage, index)

    def copy(self, root: Location) -> None:
        """Copies the items that are not trees."""
        copy_items(self.target, root)


def _in_files(planned: _Planned) -> FileMap:
    """The files with one for each chunk: ``<item>/<dotted name>/c/0/1``, or ``c.0.0`` if the tensor has only one chunk."""
    target, trees, arrays, folders = planned.target, planned.trees, planned.arrays, planned.folders

    def places(name: str, index: Index) -> tuple[Place, ...]:
        return (Place(join(folders[name], planned.key(name, index))),)

    def names() -> Iterator[str]:
        yield from (tree.below(name) for tree in trees for name in ITEM_FILES)
        yield from folders.values()

    def all_folders() -> Iterator[str]:
        for name, folder in folders.items():
            yield folder
            for below in chunk_folders(target.tensors[name].spec.storage):
                yield join(folder, below)

    def literals() -> Iterator[tuple[str, bytes]]:
        for tree in trees:
            for path, data in arrays[tree.item.name].items():
                yield tree.below(path), data

    def finish(
        root: Location, digests: Mapping[str, str], _: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        return finish_checkpoint(root, target, trees, digests, arrays=arrays, ocdbt=False)

    return FileMap(
        places=places,
        finish=finish,
        names=names,
        folders=all_folders,
        literals=literals,
        copy=planned.copy,
    )


def _in_databases(planned: _Planned) -> FileMap:
    """The files with all arrays of an item in one OCDBT database."""
    from reshard.formats.ocdbt.databases import Databases

    target, trees = planned.target, planned.trees
    keys = {leaf.leaf.name: (t.directory, leaf.folder) for t in trees for leaf, _ in t.tensors}

    def key(name: str, index: Index) -> tuple[str, str]:
        directory, folder = keys[name]
        return directory, join(folder, planned.key(name, index))

    def finish(
        root: Location, digests: Mapping[str, str], _: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        return finish_checkpoint(root, target, trees, digests, arrays={}, ocdbt=True)

    return FileMap(
        places=lambda *_: (),
        finish=finish,
        copy=planned.copy,
        database=Databases({t.directory: planned.arrays[t.item.name] for t in trees}, key),
    )
