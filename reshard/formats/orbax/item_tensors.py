"""The tensors of one Orbax item: its tree joined with the zarr metadata of each array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import Encoding, Extent, Item, Leaf, StoredTensor
from reshard.formats.limits import MAX_CUTS, MAX_LAYOUT_CUTS, MAX_ZARR_BYTES
from reshard.formats.ocdbt.index import OcdbtIndex, find_databases
from reshard.formats.orbax.container import TREE_METADATA
from reshard.formats.orbax.metadata_price import LEAF_BYTES, TENSOR_BYTES
from reshard.formats.orbax.plain_files import PlainFiles
from reshard.formats.orbax.sharding_file import OneDevice, Sharding, read_shardings
from reshard.formats.orbax.tree_metadata import (
    MetadataLeaf,
    TreeMetadata,
    read_ext_metadata,
    read_strings,
    read_tree_metadata,
)
from reshard.formats.slices.file_digests import check_bytes
from reshard.formats.slices.metadata_files import MetadataFiles
from reshard.formats.values import Values, read_extent, read_extents
from reshard.formats.zarr.codec_chains import BY_TENSORSTORE
from reshard.formats.zarr.metadata import ZARR2_FILE, ZARR3_FILE, ZarrArray, parse_zarr
from reshard.formats.zarr.tensorstore_array import tensorstore_encoding
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import same_axes
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.formats.slices.slice_file import SliceEntry, SliceFile

_KEY_IMPLEMENTATION = "random_key_impl"

FETCHED_AT_ONCE = 256
MAX_FETCHED_BYTES = 64 << 10
"""Where requests take long, the metadata of so many arrays is read at once, if it is no longer than this."""


class ArrayFiles(Struct, frozen=True):
    """Where the values of one tensor are looked up."""

    param_name: str
    zarr: ZarrArray
    values: Values

    def key(self, below: str) -> str:
        """The key of a value of this array; an array without a name has its values at the top."""
        return f"{self.param_name}/{below}" if self.param_name else below


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
        check: whether each array's metadata must have its recorded digest.
    """
    directory = files.folder
    tree = read_tree_metadata(files, TREE_METADATA)
    strings = read_strings(files, tree.leaves)
    wanted = {leaf.param_name for leaf in tree.leaves if leaf.is_tensor}
    ext = read_ext_metadata(files, wanted)
    digests = recorded.files if recorded is not None and check else {}
    stored = [leaf for leaf in tree.leaves if leaf.is_tensor]
    found = _find_arrays(directory, stored, tree, digests)
    shardings = read_shardings(files)
    entries = recorded.tensors if recorded is not None else {}
    assemble = _TensorAssembly(tree, shardings, ext, entries, directory).assemble
    tensors, arrays = {}, {}
    for leaf in tree.leaves:
        if leaf.is_tensor:
            name = _name(prefix, leaf)
            arrays[name] = found[leaf.param_name]
            tensors[name] = assemble(name, leaf, arrays[name])
    placed = _placed(tree.leaves, shardings, entries)
    leaves = tuple(_leaves(tree.leaves, prefix, item.name, ext, strings, placed))
    values = {id(a.values): a.values for a in arrays.values()}
    size = sum(v.metadata_bytes for v in values.values()) + _leaf_bytes(leaves, tensors)
    return OpenItem(replace(item, meta=tree.kept), leaves, tensors, arrays, size)


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
        key = (id(leaf.value), leaf.is_tensor, *where.items())
        meta = alike.setdefault(key, {**_meta(leaf), **where})
        if leaf.is_string:
            meta = {**meta, "string": strings[leaf.param_name]}
        if (own := ext.get(leaf.param_name)) is not None and leaf.is_tensor:
            meta = {**meta, "ext_metadata": own}
        yield Leaf(_name(prefix, leaf), leaf.path, item, leaf.is_tensor, meta)


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


def _meta(leaf: MetadataLeaf) -> dict[str, Any]:
    none = {"ext_metadata": None} if leaf.is_tensor else {}
    return {"value_metadata": leaf.value, **none}


def _name(prefix: str, leaf: MetadataLeaf) -> str:
    """A bare array, which has no keys, is named like its item."""
    return prefix + leaf.name if leaf.path else prefix.removesuffix("/")


def _leaf_bytes(leaves: Sequence[Leaf], tensors: Mapping[str, StoredTensor]) -> int:
    names = sum(4 * len(leaf.name) for leaf in leaves)
    return names + LEAF_BYTES * len(leaves) + TENSOR_BYTES * len(tensors)


def _find_arrays(
    directory: Location,
    leaves: Sequence[MetadataLeaf],
    tree: TreeMetadata,
    recorded: Mapping[str, str],
) -> dict[str, ArrayFiles]:
    """Each tensor's metadata file, by param name.

    In OCDBT the merged database is enough if it has every array. If it lacks one, or is missing, the processes'
    databases are read too.
    """
    databases = find_databases(directory)
    if not databases:
        files = PlainFiles(directory, is_listed=not tree.stores_fill)
        return _look_up(directory, leaves, tree, files, must=True, recorded=recorded)
    if databases[0] == directory:
        merged = OcdbtIndex(databases[:1])
        found = _look_up(directory, leaves, tree, merged, must=len(databases) == 1)
        if len(found) == len(leaves):
            return found
    return _look_up(directory, leaves, tree, OcdbtIndex(databases), must=True)


def _look_up(
    directory: Location,
    leaves: Sequence[MetadataLeaf],
    tree: TreeMetadata,
    values: Values,
    must: bool,
    recorded: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, ArrayFiles]:
    parse = _shared_parse()
    found = {}
    fetched: dict[Extent, bytes] = {}
    for number, leaf in enumerate(leaves):
        if directory.store.range_bytes and number % FETCHED_AT_ONCE == 0:
            fetched = _fetch(leaves[number : number + FETCHED_AT_ONCE], tree, values)
        array = _open_array(leaf, tree, values, parse, recorded, fetched)
        if array is not None:
            found[leaf.param_name] = array
        elif must and "\\" in leaf.param_name and isinstance(values, PlainFiles):
            raise FormatError(
                f"{directory}: the tensor {leaf.name!r} has a backslash in its name, which TensorStore reads as a "
                f"slash in plain files, so that stock Orbax cannot find it either; save it under another name, or "
                "with OCDBT (use_ocdbt=True)"
            )
        elif must:
            raise CorruptError(
                f"{directory}: the tensor {leaf.name!r} is in {TREE_METADATA}, but its metadata "
                f"({leaf.param_name}/{ZARR2_FILE} or {ZARR3_FILE}) is not stored; restore the folder "
                "from a copy"
            )
        else:
            break
    return found


Parse = Callable[[bytes, str, str], ZarrArray]


def _shared_parse() -> Parse:
    """``parse_zarr`` that parses equal bytes once: most arrays of a tree are alike."""
    known: dict[tuple[str, bytes], ZarrArray] = {}

    def parse(data: bytes, file_name: str, where: str) -> ZarrArray:
        if (array := known.get((file_name, data))) is None:
            array = known[file_name, data] = parse_zarr(data, file_name, where)
        return array

    return parse


def _metadata_keys(leaf: MetadataLeaf, tree: TreeMetadata) -> Iterator[tuple[str, str, str]]:
    """Where an array's metadata may be: key, name of the file, and what it is, for messages."""
    prefix = f"{leaf.param_name}/" if leaf.param_name else ""
    for name in (ZARR3_FILE, ZARR2_FILE) if tree.uses_zarr3 else (ZARR2_FILE, ZARR3_FILE):
        yield prefix + name, name, f"tensor {leaf.name!r}, {prefix}{name}"


def _fetch(
    leaves: Sequence[MetadataLeaf], tree: TreeMetadata, values: Values
) -> dict[Extent, bytes]:
    """Metadata of many arrays at once, where a request for each would take long. What it lacks is read alone."""
    extents = []
    for leaf in leaves:
        looked_up = (values.find(key, where) for key, _, where in _metadata_keys(leaf, tree))
        extent = next((extent for extent in looked_up if extent is not None), None)
        if extent is not None and extent.length <= MAX_FETCHED_BYTES:
            extents.append(extent)
    return read_extents(extents)


def _open_array(
    leaf: MetadataLeaf,
    tree: TreeMetadata,
    values: Values,
    parse: Parse,
    recorded: Mapping[str, str],
    fetched: Mapping[Extent, bytes],
) -> ArrayFiles | None:
    for key, file_name, where in _metadata_keys(leaf, tree):
        extent = values.find(key, where)
        if extent is None:
            continue
        if extent.length > MAX_ZARR_BYTES:
            raise FormatError(
                f"{where}: an array's metadata of {extent.length:,} bytes is not read; expected at "
                f"most {MAX_ZARR_BYTES:,}"
            )
        data = fetched[extent] if extent in fetched else read_extent(extent, where)
        check_bytes(data, recorded, key, where)
        array = parse(data, file_name, where)
        if array.encoding is BY_TENSORSTORE:
            encoding = tensorstore_encoding(
                data, file_name, array.chunk_shape, tree.stores_fill, where
            )
            array = replace(array, encoding=encoding)
        return ArrayFiles(leaf.param_name, array, values)
    return None


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
        may_be_missing = not self._tree.stores_fill
        return StoredTensor(spec, encoding, zarr.fill, may_be_missing, digest, is_key, partition)

    def _grid(self, name: str, zarr: ZarrArray) -> Grid:
        key = (zarr.shape, zarr.chunk_shape)
        if (grid := self._grids.get(key)) is None:
            self._cuts += sum(-(-n // c) + 1 for n, c in zip(*key, strict=True))
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
