"""The Orbax writer: zarr3 arrays in plain files, so that any worker can write any chunk alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from reshard.errors import FormatError
from reshard.formats.base import ChunkChecksum, Place, SharedFile, TargetCheckpoint, Writer
from reshard.formats.orbax.array_item import is_array_handler
from reshard.formats.orbax.form import OrbaxForm
from reshard.formats.orbax.param_names import ITEM_FILES, check_files
from reshard.formats.orbax.write.copy_items import copy_items
from reshard.formats.orbax.write.finish import check_tree, finish_checkpoint
from reshard.formats.orbax.write.item_tree import ItemTree, item_trees
from reshard.formats.zarr.zarr3_json import chunk_folders, chunk_key, zarr_json
from reshard.geometry.grid import Index
from reshard.storage.local.folding import refuse_folded
from reshard.storage.location import Location
from reshard.storage.parallel_calls import each_at_once


def open_writer(target: TargetCheckpoint, form: OrbaxForm) -> Writer:
    """A writer of a checkpoint that stock Orbax restores; nothing is written yet.

    Raises FormatError, naming the tensor, for names that collide or are unsafe and for arrays that
    zarr3 cannot hold; LayoutError if a layout does not divide its tensor.
    """
    trees = item_trees(target)
    for tree in trees:
        check_tree(tree)
    if form.ocdbt:
        from reshard.formats.orbax.write.ocdbt_writer import OcdbtWriter

        return OcdbtWriter(target, trees)
    return OrbaxWriter(target, trees)


class OrbaxWriter:
    """Writes plain zarr3 files; safe from any thread once prepared."""

    def __init__(self, target: TargetCheckpoint, trees: Sequence[ItemTree]) -> None:
        self._target = target
        self._trees = trees
        self._root: Location | None = None
        for tree in trees:
            names = [(leaf.folder, leaf.leaf.name) for leaf, _ in tree.tensors]
            check_files(names, is_array=_is_array(tree))
        self._arrays = {tree.item.name: _array_files(tree) for tree in trees}

    def prepare(self, root: Location) -> None:
        """Make the folders, write each ``zarr.json``, copy the items that are not trees."""
        self._root = root
        root.make_folder()
        own = (tree.below(name) for tree in self._trees for name in ITEM_FILES)
        refuse_folded(root, chain(own, self._folders.values()))
        for tree in self._trees:
            _prepare_tree(root, tree, self._arrays[tree.item.name])
        copy_items(self._target, root)

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The chunk's own file: ``<item>/<dotted name>/c/0/1``, or ``c.0.0`` if the tensor has only one chunk."""
        return (Place(self._file(name, index)),)

    def _file(self, name: str, index: Index) -> str:
        grid = self._target.tensors[name].spec.storage
        return f"{self._folders[name]}/{chunk_key(grid, index)}"

    def shared_file(self, file: str) -> SharedFile:
        """Never called: chunks share no file."""
        raise FormatError(
            f"{file!r} is no file that chunks share; this is a defect of the program, please report it"
        )

    def put(self, name: str, index: Index, data: bytes | memoryview) -> None:
        """Write the chunk's file; StorageError if the store refuses."""
        if self._root is None:
            raise FormatError(f"chunk {list(index)} of {name!r} was put before prepare")
        (self._root / self._file(name, index)).write(data)

    def holds(self, name: str, index: Index) -> bool:
        """Whether the chunk's file is there."""
        return self._root is not None and (self._root / self._file(name, index)).is_file()

    def keeps(self, file: str) -> bool:  # noqa: ARG002
        """False: every chunk has a file, which ``places`` names."""
        return False

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        checksums: Iterable[ChunkChecksum],  # noqa: ARG002  chunks have trailers, files have digests
    ) -> Mapping[str, bytes]:
        """Write metadata and slices.json; the markers are returned."""
        return finish_checkpoint(
            root, self._target, self._trees, digests, arrays=self._arrays, ocdbt=False
        )

    @cached_property
    def _folders(self) -> dict[str, str]:
        return {
            leaf.leaf.name: tree.below(leaf.folder)
            for tree in self._trees
            for leaf, _ in tree.tensors
        }


def _array_files(tree: ItemTree) -> dict[str, bytes]:
    return {
        f"{leaf.folder}/zarr.json": zarr_json(tensor.spec, tensor.encoding)
        for leaf, tensor in tree.tensors
    }


def _is_array(tree: ItemTree) -> bool:
    """Whether the item is one array; old versions of Orbax record no handler of it."""
    handler = tree.item.handler
    return len(tree.leaves) == 1 and (not handler or is_array_handler(handler))


def _prepare_tree(root: Location, tree: ItemTree, arrays: Mapping[str, bytes]) -> None:
    base = root / tree.directory
    base.make_folder()
    grids = {leaf.folder: tensor.spec.storage for leaf, tensor in tree.tensors}

    def prepare_array(param: str) -> None:
        folder = base / param
        folder.make_folder()
        if root.traits.has_folders:
            for below in chunk_folders(grids[param]):
                (folder / below).make_folder()
        (folder / "zarr.json").write(arrays[f"{param}/zarr.json"])

    for _ in each_at_once(root.store, prepare_array, grids):
        pass
