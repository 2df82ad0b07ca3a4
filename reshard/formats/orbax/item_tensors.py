"""The tensors of one Orbax item: its tree joined with the zarr metadata of each array.

Before that the memory of opening them is estimated: the leaves are counted in ``_METADATA``, read piece by piece, where each has
one list of keys. Where there is none, they are counted in the file ``checkpoint``, whose arrays are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, LayoutError, ReshardError
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import Encoding, Item, Leaf, StoredTensor
from reshard.formats.limits import MAX_CUTS, MAX_JSON_BYTES, MAX_LAYOUT_CUTS
from reshard.formats.marks import AGGREGATE, TREE_METADATA, V1_MARKER
from reshard.formats.orbax.aggregate_file import count_values
from reshard.formats.orbax.aggregate_tree import (
    KeptValues,
    OpenTree,
    kept_arrays,
    read_tree,
    without_value,
)
from reshard.formats.orbax.find_arrays import ArrayFiles, find_arrays
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.tree_metadata import (
    MetadataLeaf,
    OneDevice,
    Sharding,
    TreeMetadata,
    read_ext_metadata,
    read_shardings,
    read_strings,
    read_tree_metadata,
)
from reshard.formats.zarr.metadata import ZarrArray
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import same_axes
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.calls import read_part
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.formats.slices.slice_file import SliceEntry, SliceFile


_KEY_IMPLEMENTATION = "random_key_impl"


class OpenItem(Struct, frozen=True):
    """One item with its metadata; ``item`` includes the metadata of the whole tree."""

    item: Item
    leaves: tuple[Leaf, ...]
    tensors: Mapping[str, StoredTensor]
    arrays: Mapping[str, ArrayFiles]
    metadata_bytes: int


def open_item(
    files: MetadataFiles, item: Item, prefix: str, recorded: SliceFile | None, *, check: bool = True
) -> OpenItem:
    """Reads everything of an item that is not tensor data.

    Args:
        files: the metadata files in the folder of the item.
        item: as the container lists it.
        prefix: put before each name; ``"item/"`` if the container has ``naming_items``.
        recorded: its ``slices.json``, or None.
        check: True if each array's metadata must have its recorded digest.
    """
    opened = _read_tree(files)
    tree, kept = opened.tree, opened.values
    strings = read_strings(files, [leaf for leaf in tree.leaves if leaf.param_name not in kept])
    with_arrays = [leaf for leaf in tree.leaves if leaf.is_tensor]
    wanted = {leaf.param_name for leaf in with_arrays}
    ext = read_ext_metadata(files, wanted)
    digests = recorded.files if recorded is not None and check else {}
    stored = [leaf for leaf in with_arrays if leaf.param_name not in kept]
    found = find_arrays(files, stored, tree, digests)
    if opened.aggregate is not None:
        strings |= opened.strings
        found |= kept_arrays(kept, opened.aggregate)
    shardings = read_shardings(files, wanted)
    entries = recorded.tensors if recorded is not None else {}
    assemble = _TensorAssembly(tree, shardings, ext, entries, files.folder).assemble
    tensors, arrays = {}, {}
    for leaf in with_arrays:
        name = _name(prefix, leaf)
        arrays[name] = found[leaf.param_name]
        tensors[name] = assemble(name, leaf, arrays[name])
    placed = _placed(tree.leaves, shardings, entries)
    leaves = tuple(_leaves(tree.leaves, prefix, item.name, ext, strings, placed))
    values = {id(a.values): a.values for a in arrays.values()}
    size = sum(v.metadata_bytes for v in values.values()) + _leaf_bytes(leaves, tensors)
    return OpenItem(replace(item, meta=tree.kept), leaves, tensors, arrays, size)


def _read_tree(files: MetadataFiles) -> OpenTree:
    """The leaves of the item, with the values that the aggregate file keeps where there is one. Raises as ``read_tree``."""
    if AGGREGATE in files.names:
        return read_tree(files)
    tree = read_tree_metadata(files, TREE_METADATA)
    for leaf in tree.leaves:
        if leaf.is_kept_elsewhere:
            raise without_value(leaf, files, None)
    return OpenTree(tree, {})


def _leaves(
    leaves: Sequence[MetadataLeaf],
    prefix: str,
    item: str,
    ext: Mapping[str, Mapping[str, Any] | None],
    strings: Mapping[str, str],
    placed: Mapping[str, Mapping[str, str]],
) -> Iterator[Leaf]:
    """The leaves; equal metadata is one object."""
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for leaf in leaves:
        where = placed.get(leaf.param_name, {})
        is_tensor = leaf.is_tensor
        key = (id(leaf.value), is_tensor, *where.items())
        none = {"ext_metadata": None} if is_tensor else {}
        meta = alike.setdefault(key, {"value_metadata": leaf.value, **none, **where})
        if leaf.is_string:
            meta = {**meta, "string": strings[leaf.param_name]}
        if (own := ext.get(leaf.param_name)) is not None and is_tensor:
            meta = {**meta, "ext_metadata": own}
        yield Leaf(_name(prefix, leaf), leaf.path, item, is_tensor, meta)


def _placed(
    leaves: Sequence[MetadataLeaf],
    shardings: Mapping[str, Sharding],
    entries: Mapping[str, SliceEntry],
) -> dict[str, dict[str, str]]:
    """The recorded placement that layouts do not express, by param name."""
    found: dict[str, dict[str, str]] = {}
    for leaf in leaves:
        sharding, entry = shardings.get(leaf.param_name), entries.get(leaf.name)
        if isinstance(sharding, OneDevice):
            found.setdefault(leaf.param_name, {})["sharding"] = sharding.text
        if entry is not None and entry.memory_kind is not None:
            found.setdefault(leaf.param_name, {})["memory_kind"] = entry.memory_kind
    return found


def _name(prefix: str, leaf: MetadataLeaf) -> str:
    """The name of a leaf; a bare array, which has no keys, is named like its item."""
    return prefix + leaf.name if leaf.path else prefix.removesuffix("/")


def _leaf_bytes(leaves: Sequence[Leaf], tensors: Mapping[str, StoredTensor]) -> int:
    names = sum([4 * len(leaf.name) for leaf in leaves])
    return names + LEAF_BYTES * len(leaves) + TENSOR_BYTES * len(tensors)


def _fuller(recorded: TensorLayout | None, own: TensorLayout | None) -> TensorLayout | None:
    """The layout that slices.json recorded, or the equal one of ``_sharding`` if that has device ids."""
    if recorded is None or own is None or own.device_mesh is None or recorded.device_mesh is None:
        return recorded or own
    is_same = own.axes == recorded.axes and same_axes(own.device_mesh, recorded.device_mesh)
    return own if is_same and recorded.device_mesh.device_ids is None else recorded


class _TensorAssembly:
    """Puts tensors together, sharing equal grids and equal encodings among them."""

    def __init__(
        self,
        tree: TreeMetadata,
        shardings: Mapping[str, Sharding],
        ext: Mapping[str, Mapping[str, Any] | None],
        recorded: Mapping[str, SliceEntry],
        directory: Location,
    ) -> None:
        self._tree, self._shardings, self._ext = tree, shardings, ext
        self._recorded, self._where = recorded, str(directory)
        self._store = directory.store
        self._grids: dict[tuple[tuple[int, ...], tuple[int, ...]], Grid] = {}
        self._encodings: dict[Encoding, Encoding] = {}
        self._fitting: set[tuple[TensorLayout, tuple[int, ...]]] = set()
        self._cuts = 0
        self._layout_cuts = 0

    def assemble(self, name: str, leaf: MetadataLeaf, array: ArrayFiles) -> StoredTensor:
        """The tensor of a leaf, with its entry in ``slices.json``, if any."""
        zarr = array.zarr
        sharding = self._shardings.get(leaf.param_name)
        layout = sharding if isinstance(sharding, TensorLayout) else None
        digest, partition = None, None
        if (entry := self._recorded.get(leaf.name)) is not None:
            self._check_recorded(name, zarr, entry.shape, entry.dtype)
            layout, digest = _fuller(entry.layout, layout), entry.digest
            partition = entry.partition
        self._check_fit(name, layout, zarr.shape)
        grid = self._grid(name, zarr)
        spec = TensorSpec(name, zarr.shape, zarr.dtype, grid, zarr.chunk_shape, layout)
        encoding = self._encodings.get(zarr.encoding)
        if encoding is None:
            encoding = self._encodings[zarr.encoding] = read_ahead(zarr.encoding, self._store)
        is_key = _KEY_IMPLEMENTATION in (self._ext.get(leaf.param_name) or {})
        may_be_missing = not (self._tree.stores_fill or isinstance(array.values, KeptValues))
        return StoredTensor(spec, encoding, zarr.fill, may_be_missing, digest, is_key, partition)

    def _grid(self, name: str, zarr: ZarrArray) -> Grid:
        key = (zarr.shape, zarr.chunk_shape)
        if (grid := self._grids.get(key)) is None:
            self._cuts += sum([-(-n // c) + 1 for n, c in zip(*key, strict=True)])
            if self._cuts > MAX_CUTS:
                raise FormatError(
                    f"{self._where}: up to {name!r} the tensors are cut in more than {MAX_CUTS:,} "
                    "places, the most that is read"
                )
            grid = self._grids[key] = self._cut(name, *key)
        return grid

    def _cut(self, name: str, shape: tuple[int, ...], chunk: tuple[int, ...]) -> Grid:
        try:
            return Grid.regular(shape, chunk)
        except LayoutError as error:
            raise FormatError(f"{self._where}: the chunks of {name!r}: {error}") from error

    def _check_fit(self, name: str, layout: TensorLayout | None, shape: tuple[int, ...]) -> None:
        if layout is None or (layout, shape) in self._fitting:
            return
        try:
            parts = layout.grid(shape, name).parts
        except LayoutError as error:
            raise CorruptError(
                f"{self._where}: the layout recorded for {name!r} contradicts its shape: {error}"
            ) from error
        self._fitting.add((layout, shape))
        self._layout_cuts += sum(parts)
        if self._layout_cuts > MAX_LAYOUT_CUTS:
            raise FormatError(
                f"{self._where}: up to {name!r} the recorded layouts cut tensors in more than "
                f"{MAX_LAYOUT_CUTS:,} places, the most that is read"
            )

    def _check_recorded(
        self, name: str, zarr: ZarrArray, shape: tuple[int, ...], dtype: str
    ) -> None:
        if (tuple(shape), dtype) != (zarr.shape, zarr.dtype):
            raise CorruptError(
                f"{self._where}: slices.json records {name!r} as {dtype} of shape {list(shape)}, but "
                f"the stored array is {zarr.dtype} of shape {list(zarr.shape)}; remove slices.json if the "
                "checkpoint was changed on purpose"
            )


LEAF_BYTES = 300
TENSOR_BYTES = 650
"""Objects of a leaf and of a tensor, and the text they were read from (measured)."""

OPENED_LEAF_BYTES = LEAF_BYTES + TENSOR_BYTES + 250
"""Memory of a tensor of one chunk, with names and index entries of common length; an overestimate, so that the
budget in an error message is enough."""

_KEYS = b'"key_metadata":'
_PIECE_BYTES = 1 << 20


def leaf_count(root: Location) -> int:
    """The number of leaves in the trees of a checkpoint; 0 if it has none.

    Files that cannot be read or are too large are not counted: opening them raises the error.
    """
    try:
        entries = root.entries()
        names = frozenset([entry.name for entry in entries])
        # The folders beside a tree are its arrays, of which there may be 10,000.
        if TREE_METADATA in names and V1_MARKER not in names:
            return _count(root / TREE_METADATA)
        folders = [root, *(root / entry.name for entry in entries if entry.is_folder)]
        return sum(map(_count_tree, folders))
    except ReshardError:
        return 0


def _count_tree(folder: Location) -> int:
    metadata = folder / TREE_METADATA
    return _count(metadata) if metadata.exists() else count_values(folder)


def _count(file: Location) -> int:
    status = file.status()
    if status is None or status.kind != "file" or status.nbytes > MAX_JSON_BYTES:
        return 0
    found, done, rest = 0, 0, b""
    piece_bytes = file.read_bytes(_PIECE_BYTES)
    while done < status.nbytes:
        # A file of one piece is read as it is when it is opened, so that it is requested once.
        piece = read_part(file, status, done, min(piece_bytes, status.nbytes - done))
        text = rest + piece
        found += text.count(_KEYS)
        rest = text[1 - len(_KEYS) :]
        done += len(piece) or status.nbytes
    return found
