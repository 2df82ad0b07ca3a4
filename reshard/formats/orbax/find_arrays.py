"""Finds the zarr metadata of each array of an Orbax item, in plain files or in OCDBT databases.

An array whose codecs only TensorStore decodes is tried at once. The spec is of an array of one chunk in memory, so that TensorStore
decodes bytes that this project read: from any store, with its credentials, and of the version that was listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError
from reshard.formats.contents import Encoding, Extent
from reshard.formats.limits import MAX_ZARR_BYTES
from reshard.formats.ocdbt.index import PROCESS_PREFIX, OcdbtIndex, find_databases
from reshard.formats.ocdbt.manifest import MANIFEST
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.tree_metadata import (
    MetadataLeaf,
    TreeMetadata,
    key_prefix,
    refuse_unsafe,
)
from reshard.formats.safe_json import expect, json_value
from reshard.formats.slices.file_digests import check_bytes
from reshard.formats.zarr.metadata import (
    BY_TENSORSTORE,
    SUPPORTED,
    ZARR2_FILE,
    ZARR3_FILE,
    ZarrArray,
    parse_zarr,
)
from reshard.formats.zarr.values import PlainFiles, Values, read_extent, read_extents
from reshard.storage.location import Location

FETCHED_AT_ONCE = 256
MAX_FETCHED_BYTES = 64 << 10
"""Arrays whose metadata is read at once where requests take long, and the most bytes that each may have for that."""


class ArrayFiles(Struct, frozen=True):
    """The look-up of the values of one tensor."""

    param_name: str
    zarr: ZarrArray
    values: Values

    @property
    def prefix(self) -> str:
        """The prefix of the keys of its values."""
        return key_prefix(self.param_name)

    def key(self, below: str) -> str:
        """The key of a value of this array."""
        return self.prefix + below


def find_arrays(
    files: MetadataFiles,
    leaves: Sequence[MetadataLeaf],
    tree: TreeMetadata,
    recorded: Mapping[str, str],
) -> dict[str, ArrayFiles]:
    """Each tensor's metadata file, by param name.

    In OCDBT the merged database is enough if it has every array. If it lacks one, or is missing, the processes'
    databases are read too.
    """
    directory, names = files.folder, files.names
    in_databases = MANIFEST in names or [n for n in names if n.startswith(PROCESS_PREFIX)]
    databases = find_databases(directory) if in_databases else []
    if not databases:
        file = str(directory / tree.file)
        for leaf in tree.leaves:  # in a database names are keys, which lead nowhere
            refuse_unsafe(leaf.param_name, f"{file}, the entry of {leaf.path}")
        plain = PlainFiles(directory, is_listed=not tree.stores_fill)
        return _look_up(directory, leaves, tree, plain, must=True, recorded=recorded)
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
        if number % FETCHED_AT_ONCE == 0:
            some = leaves[number : number + FETCHED_AT_ONCE]
            fetched = read_extents(directory.store, _metadata_of(some, tree, values))
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
                f"{directory}: the tensor {leaf.name!r} is in {tree.file}, but its metadata "
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
    """The possible places of an array's metadata: key, name of the file, and its description for messages."""
    prefix = key_prefix(leaf.param_name)
    for name in (ZARR3_FILE, ZARR2_FILE) if tree.uses_zarr3 else (ZARR2_FILE, ZARR3_FILE):
        yield prefix + name, name, f"tensor {leaf.name!r}, {prefix}{name}"


def _metadata_of(
    leaves: Sequence[MetadataLeaf], tree: TreeMetadata, values: Values
) -> Iterator[Extent]:
    """The metadata of many arrays, for one request instead of one for each. Missing ones are read alone."""
    for leaf in leaves:
        looked_up = (values.find(key, where) for key, _, where in _metadata_keys(leaf, tree))
        extent = next((extent for extent in looked_up if extent is not None), None)
        if extent is not None and extent.length <= MAX_FETCHED_BYTES:
            yield extent


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
        if recorded:
            check_bytes(data, recorded, key, where)
        array = parse(data, file_name, where)
        if array.encoding is BY_TENSORSTORE:
            encoding = tensorstore_encoding(
                data, file_name, array.chunk_shape, tree.stores_fill, where
            )
            array = replace(array, encoding=encoding)
        return ArrayFiles(leaf.param_name, array, values)
    return None


def tensorstore_encoding(
    data: bytes, file_name: str, chunk_shape: Sequence[int], stores_fill: bool, where: str
) -> Encoding:
    """The encoding with a spec that decodes one chunk.

    Args:
        data: the array's metadata, which ``parse_zarr`` has accepted.
        file_name: its file, ``.zarray`` or ``zarr.json``.
        chunk_shape: shape of one encoded chunk.
        stores_fill: True if a missing part of a chunk is an error; the spec then says so.
        where: tensor and file, for errors.

    Raises FormatError with TensorStore's message if it does not know the codecs.
    """
    import tensorstore as ts

    fields = expect(json_value(data, where), dict, "the array's metadata", where)
    is_zarr2 = file_name == ZARR2_FILE
    shape = list(chunk_shape)
    spec = {
        "driver": "zarr" if is_zarr2 else "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": _zarr2_chunk(fields, shape) if is_zarr2 else _zarr3_chunk(fields, shape),
        "fill_missing_data_reads": not stores_fill,
    }
    try:
        ts.open(spec, open=True, read=True, assume_metadata=True).result()
    except (ValueError, OSError, KeyError, NotImplementedError, RuntimeError) as error:
        raise FormatError(
            f"{where}: its codecs are not supported (TensorStore: {str(error).splitlines()[0]}); "
            f"supported are {SUPPORTED}"
        ) from error
    return Encoding("tensorstore", spec=json.dumps(spec, sort_keys=True))


def _zarr2_chunk(fields: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    return fields | {"shape": shape, "chunks": shape, "dimension_separator": "."}


def _zarr3_chunk(fields: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("attributes", "dimension_names")} | {
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
    }  # fmt: skip
