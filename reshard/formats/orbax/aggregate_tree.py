"""The leaves of an item: those of ``_METADATA`` with the values that the file ``checkpoint`` keeps, or those of that file alone.

As stock Orbax 0.12 restores them (``PyTreeCheckpointHandler._get_internal_metadata``), a value that the file keeps overrides
the leaf's entry in ``_METADATA``: it comes back as a numpy array, a Python number or text. A leaf that has a value, but
neither there nor in an array of its own, is an error here; stock Orbax gives its metadata in its place.

Values are arrays that the rest of the project reads like any other. The bytes of arrays stay in the file, and are read from
there. Numbers are kept in memory as the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError
from reshard.formats.contents import Encoding, Extent, GatheredChunk, RawPiece
from reshard.formats.leaf_paths import Path
from reshard.formats.marks import AGGREGATE, TREE_METADATA
from reshard.formats.orbax.aggregate_file import (
    Aggregate,
    Value,
    placeholder_name,
    read_aggregate,
)
from reshard.formats.orbax.find_arrays import ArrayFiles
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.msgpack_values import ArrayBytes
from reshard.formats.orbax.tree_metadata import (
    MetadataLeaf,
    TreeMetadata,
    read_tree_metadata,
    refuse_collisions,
    refuse_odd,
    refuse_unsafe,
)
from reshard.formats.zarr.metadata import ZarrArray
from reshard.geometry.dtypes import element_of, storage_bytes
from reshard.geometry.grid import Box
from reshard.geometry.row_major import run_boxes

_ARRAY = {"value_type": "np.ndarray", "skip_deserialize": False}
_NUMBER = {"value_type": "scalar", "skip_deserialize": False}
_TEXT = {"value_type": "string", "skip_deserialize": False}
_EMPTY = {
    name: {"value_type": name, "skip_deserialize": True} for name in ("None", "Dict", "List", "Tuple")
}  # fmt: skip


class OpenTree(Struct, frozen=True):
    """The leaves of an item.

    Attributes:
        values: those in ``aggregate``, by param name: arrays, numbers and strings.
    """

    tree: TreeMetadata
    values: Mapping[str, Value]
    aggregate: Aggregate | None = None

    @property
    def strings(self) -> dict[str, str]:
        """The values that are strings."""
        return {name: value for name, value in self.values.items() if isinstance(value, str)}


def read_tree(files: MetadataFiles) -> OpenTree:
    """The leaves of the item in a folder that has the file, each with the place of its value.

    Raises CorruptError for a leaf whose value is nowhere, and as ``read_tree_metadata`` and ``read_aggregate``.
    """
    aggregate = read_aggregate(files.folder)
    if aggregate is not None and not (files.folder / TREE_METADATA).exists():
        return _tree_of(aggregate)
    tree = read_tree_metadata(files, TREE_METADATA)
    kept = _kept(tree, aggregate)
    leaves = tuple(
        replace(leaf, value=_metadata_of(kept[leaf.param_name]))
        if leaf.param_name in kept
        else leaf
        for leaf in tree.leaves
    )
    for leaf in leaves:
        if leaf.is_kept_elsewhere:
            raise without_value(leaf, files, aggregate)
    return OpenTree(replace(tree, leaves=leaves), kept, aggregate)


def _tree_of(aggregate: Aggregate) -> OpenTree:
    leaves = tuple(_leaf(path, value, aggregate.file) for path, value in aggregate.values.items())
    refuse_collisions(leaves, aggregate.file)
    kept = {
        leaf.param_name: value
        for leaf, value in zip(leaves, aggregate.values.values(), strict=True)
        if _is_kept(value)
    }
    tree = TreeMetadata(leaves, uses_zarr3=False, stores_fill=False, kept={"custom_metadata": None}, file=AGGREGATE)  # fmt: skip
    return OpenTree(tree, kept, aggregate)


def _leaf(path: Path, value: Value, where: str) -> MetadataLeaf:
    keys = [key.key for key in path]
    param_name = ".".join(keys)
    refuse_odd(param_name, where)
    refuse_unsafe(param_name, where)
    stored = placeholder_name(value)
    if stored is not None and stored != param_name:
        raise FormatError(
            f"{where}: the leaf {'/'.join(keys)!r} should be stored under the name {param_name!r}, as stock Orbax looks for it, but the file "
            f"says {stored!r}; restore it with the version of Orbax that saved it, and save it with Orbax 0.12"
        )
    return MetadataLeaf("/".join(keys), path, param_name, _metadata_of(value))


def _metadata_of(value: Value) -> dict[str, Any]:
    """The ``value_metadata`` of a leaf. The original type of an array in a folder is not known: stock Orbax gives a
    numpy array."""
    if isinstance(value, ArrayBytes) or placeholder_name(value) is not None:
        return _ARRAY
    if isinstance(value, str):
        return _TEXT
    if value is None:
        return _EMPTY["None"]
    if isinstance(value, dict | list | tuple):
        return _EMPTY[type(value).__name__.capitalize()]
    return _NUMBER


def _is_kept(value: Value) -> bool:
    is_empty = value is None or isinstance(value, dict | list | tuple)
    return not is_empty and placeholder_name(value) is None


def _kept(tree: TreeMetadata, aggregate: Aggregate | None) -> dict[str, Value]:
    """The kept values by param name. Raises CorruptError for one that is no leaf: it would be lost silently."""
    if aggregate is None:
        return {}
    values = ((path, value) for path, value in aggregate.values.items() if _is_kept(value))
    found = {tuple(key.key for key in path): value for path, value in values}
    leaves = {tuple(key.key for key in leaf.path): leaf.param_name for leaf in tree.leaves}
    for keys in found:
        if keys not in leaves:
            raise CorruptError(
                f"{aggregate.file} keeps a value of {'/'.join(keys)!r}, which is no leaf in {TREE_METADATA}; restore both files from a "
                "copy"
            )
    return {leaves[keys]: value for keys, value in found.items()}


def without_value(
    leaf: MetadataLeaf, files: MetadataFiles, aggregate: Aggregate | None
) -> CorruptError:
    """The error for a leaf whose value is neither in an array of its own nor in the file."""
    file = files.folder / AGGREGATE
    missing = "it holds no tree" if file.is_file() else "that file is not there"
    found = "it has no value of it" if aggregate is not None else missing
    return CorruptError(
        f"{files.where(TREE_METADATA)}: the leaf {leaf.name!r} ({leaf.value['value_type']}) has no array of its own (skip_deserialize), so "
        f"that its value should be in the msgpack file {file}, but {found}; restore that file from a copy, or save the "
        "checkpoint again"
    )


_EXTENT_BYTES = 220
"""Memory of an extent with its key, besides the key's text (measured)."""

_RAW = Encoding()
_GATHERED = Encoding(gathered="in ranges")


class KeptValues:
    """The extents of kept values by their keys; implements ``formats.zarr.values.Values``."""

    def __init__(self) -> None:
        self.extents: dict[str, Extent] = {}
        self.chunks: dict[str, str] = {}

    @property
    def metadata_bytes(self) -> int:
        return sum(_EXTENT_BYTES + len(key) for key in self.extents)

    def find(self, key: str, _what: str, /) -> Extent | None:
        """The extent of a value within the file, which was compared when it was opened."""
        return self.extents.get(key)

    def below(self, prefix: str) -> Iterator[str]:
        """The one chunk of the array whose keys begin so."""
        yield from (self.chunks[prefix],) if prefix in self.chunks else ()


def kept_arrays(kept: Mapping[str, Value], aggregate: Aggregate) -> dict[str, ArrayFiles]:
    """The kept arrays and numbers, by param name, each as an array of one chunk."""
    values = KeptValues()
    found = {}
    for name, value in kept.items():
        if isinstance(value, str):
            continue
        array = ArrayFiles(name, _as_zarr(value), values)
        key = array.key(array.zarr.value_key((0,) * len(array.zarr.shape)))
        values.extents[key] = _extent(value, aggregate)
        values.chunks[array.prefix] = key.removeprefix(array.prefix)
        found[name] = array
    return found


def _as_zarr(value: Value) -> ZarrArray:
    if isinstance(value, ArrayBytes):
        dtype, shape = value.dtype, value.shape
        encoding = _GATHERED if len(value.parts) > 1 else _RAW
    else:
        (dtype, _), shape, encoding = element_of(value), (), _RAW
    chunk = tuple(max(1, n) for n in shape)
    fill = bytes(storage_bytes(dtype))
    return ZarrArray(shape, dtype, chunk, chunk, encoding, fill, separator=".", prefixed=False)


def _extent(value: Value, aggregate: Aggregate) -> Extent:
    if not isinstance(value, ArrayBytes):
        data = element_of(value)[1]
        return Extent(aggregate.file, 0, len(data), inline=data, version=aggregate.version)
    start = value.parts[0][0] if value.parts else 0
    pieces = None
    if len(value.parts) > 1:
        box = Box((0,) * len(value.shape), value.shape)
        pieces = GatheredChunk(box, storage_bytes(value.dtype), tuple(_pieces(value, aggregate)))
    return Extent(aggregate.file, start, value.nbytes, pieces=pieces, version=aggregate.version)


def _pieces(value: ArrayBytes, aggregate: Aggregate) -> Iterator[RawPiece]:
    """The flat pieces of an array as boxes of it."""
    itemsize, first = storage_bytes(value.dtype), 0
    for offset, nbytes in value.parts:
        last = first + nbytes // itemsize
        for box in run_boxes(value.shape, first, last):
            yield RawPiece(box, aggregate.file, offset, version=aggregate.version)
            offset += box.size * itemsize
        first = last
