"""Reading torch's distributed checkpoint: its tensors, its leaves, and the memory that they take.

No pickle is run, and no tensor bytes are read. The elements of a piece lie in one range of a file, in row-major or another order of axes,
so that the engine reads them in ranges.

Tensors and values have the names of their paths in the tree that was saved. A value that torch stored as one item, such as ``betas`` of an
optimizer, is a branch of the tree: each of its numbers and texts is a leaf. Numbers are tensors without dimensions, as everywhere here. Any
other value is a leaf that names its kind.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, ReshardError
from reshard.formats.base import Chunks, Reader, RecordUse
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import (
    Carried,
    CarriedPart,
    Container,
    Encoding,
    Extent,
    Item,
    Leaf,
    PathKey,
    RecordedRange,
    StoredTensor,
)
from reshard.formats.dcp.files import FORMAT, metadata_files, read_metadata_files, readable
from reshard.formats.dcp.items import (
    StoredItem,
    StoredValue,
    TiledTensor,
    Wanted,
    each_item,
    filled,
    read_items,
    tiled_tensor,
)
from reshard.formats.dcp.metadata import (
    Entries,
    ItemPlace,
    MetadataFile,
    TensorEntry,
    ValueEntry,
    parse_metadata,
)
from reshard.formats.limits import MAX_ITEM_PICKLE_BYTES, MAX_LEAVES
from reshard.formats.slices.file_digests import check_digest
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import (
    NOTHING,
    SliceFile,
    check_record_fits,
    digest_of,
    fitting_entry,
    recorded,
)
from reshard.formats.torch.archive import crcs_of_number
from reshard.formats.torch.saved_values import (
    TUPLES_KEY,
    Unread,
    tensor_leaf,
    unread_leaf,
    unread_warnings,
    value_leaf,
)
from reshard.geometry.dtypes import element_of, storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

MOST_CARRIED_BYTES = 64 << 20
"""Of an archive of a value that is not read; it is in memory while it is copied."""


class TreeLeaf(Struct, frozen=True):
    """A leaf and its content.

    Attributes:
        entry: the tensor in pieces; None for another value.
        number: dtype and bytes of a number; None for anything else.
        path: the file that it is in, for a number.
        is_checked: True if the CRC of that number's pickle was compared.
    """

    leaf: Leaf
    entry: TensorEntry | None = None
    number: tuple[str, bytes] | None = None
    path: str = ""
    is_checked: bool = False


def tree_of(entries: Entries, values: Mapping[str, StoredValue], where: str) -> list[TreeLeaf]:
    """Every leaf, in the order of the entries; ``values``: the content of each entry that is no tensor.

    Raises FormatError for two leaves with the same name, for a leaf below another, and for too many.
    """
    found: dict[str, TreeLeaf] = {}
    for entry in entries.entries.values():
        path = entries.paths.get(entry.name) or (PathKey(entry.name),)
        for one in _leaves(entry, path, values):
            first = found.setdefault(one.leaf.name, one)
            if first is not one:
                raise FormatError(
                    f"{where}: two leaves are named {one.leaf.name[:200]!r} once their keys are joined, such as {entry.name[:200]!r}; rename "
                    "one where the checkpoint is saved"
                )
        if len(found) > MAX_LEAVES:
            raise FormatError(f"{where} has more than {MAX_LEAVES:,} leaves, the most that is read")
    _refuse_nested([one.leaf for one in found.values()], where)
    return list(found.values())


def _refuse_nested(leaves: Sequence[Leaf], where: str) -> None:
    """A leaf with others below it cannot be in one tree with them."""
    keys = {leaf.name: tuple(key.key for key in leaf.path) for leaf in leaves}
    whole = set(keys.values())
    for name, path in keys.items():
        for depth in range(1, len(path)):
            if path[:depth] in whole:
                raise FormatError(
                    f"{where}: the leaf {name[:200]!r} is below {'/'.join(path[:depth])[:200]!r}, which is a leaf itself; rename one where the "
                    "checkpoint is saved"
                )


def _leaves(
    entry: TensorEntry | ValueEntry, path: tuple[PathKey, ...], values: Mapping[str, StoredValue]
) -> Iterator[TreeLeaf]:
    if isinstance(entry, TensorEntry):
        yield TreeLeaf(tensor_leaf(path), entry)
        return
    stored = values[entry.name]
    if isinstance(stored.values, Unread):
        more: dict[str, Any] = {}
        if not entry.unread and entry.places[0].nbytes <= MOST_CARRIED_BYTES:
            more["carried"] = _carried(entry.places[0], stored)
        digest = stored.digest or str(entry.places[0])
        yield TreeLeaf(unread_leaf(path, stored.values, digest, **more))
        return
    for below, value, tuples in stored.values:
        leaf = value_leaf((*path, *below), value)
        if below:
            leaf = replace(leaf, meta={**leaf.meta, TUPLES_KEY: tuples})
        if leaf.tensor:
            yield TreeLeaf(leaf, None, element_of(value), stored.path, bool(stored.digest))
        else:
            yield TreeLeaf(leaf)


def _carried(place: ItemPlace, stored: StoredValue) -> Carried:
    """The place of a value's archive, which a distributed checkpoint takes as it is."""
    extent = Extent(stored.path, place.offset, place.nbytes, version=stored.version)
    return Carried(FORMAT, (CarriedPart(extent, Box.full(())),))


def largest_carried(leaves: Sequence[TreeLeaf]) -> int:
    """Bytes of the largest archive that a target may get as it is, which is then in memory."""
    found = (one.leaf.carried for one in leaves if one.leaf.carried)
    return max((part.extent.length for carried in found for part in carried.parts), default=0)


class Conventions(Struct, frozen=True):
    """The additions of a program to the form.

    Attributes:
        format: the name of the form with them.
        entries_of: the entries of a folder, from what its metadata lists.
    """

    format: str
    entries_of: Callable[[Location, Entries], Entries]


PLAIN = Conventions(FORMAT, lambda _, entries: readable(entries))


def open_dcp(
    root: Location,
    record: RecordUse,
    uri: str,
    conventions: Conventions,
) -> Reader:
    """Opens the checkpoint in a folder.

    Args:
        root: viewed as one checkpoint, so that its files are in it.
        record: the use of its slices.json, if it has one.
        uri: the folder as the user named it.
        conventions: of the program that saved it.

    Raises:
        IncompleteCheckpointError: the save did not finish.
        MissingError: a file is not there. StorageError: one cannot be read.
        CorruptError: the stored data is damaged or contradicts itself.
        FormatError: it uses a feature that is not read.
    """
    uri = uri or str(root)
    files = read_metadata_files(root)
    known = recorded(lambda: _read_record(root, files, record), record)
    where = files[0].where
    entries = conventions.entries_of(root, parse_metadata(files))
    found = read_items(root, _wanted(entries))
    tensors = {place: item for place, item in found.items() if isinstance(item, StoredItem)}
    cuts = {
        entry.name: tiled_tensor(entry, tensors, where)
        for entry in entries.entries.values()
        if isinstance(entry, TensorEntry)
    }
    values = dict(_values(entries, found))
    leaves = tree_of(entries, {name: of_ranks[0] for name, of_ranks in values.items()}, where)
    chunks = DcpChunks(uri, leaves, cuts)
    stored = {one.leaf.name: _stored(one, cuts, known, root) for one in leaves if one.leaf.tensor}
    if record == "checked" and known is not NOTHING:
        check_record_fits(known, {n: (t.spec.dtype, t.spec.shape) for n, t in stored.items()}, uri)
    return Reader(
        uri=uri,
        format=conventions.format,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=MappingProxyType(stored),
        leaves=tuple(one.leaf for one in leaves),
        chunks=chunks,
        metadata_bytes=root.kept_bytes + kept_bytes(leaves) + largest_carried(leaves),
        conversion=known.conversion,
        made=known.made,
        metadata=known.metadata,
        warnings=(*unread_warnings([one.leaf for one in leaves]), *_rank_warnings(values)),
        takes_record=True,
    )


class DcpChunks(Chunks):
    """The bytes of an open distributed checkpoint."""

    def __init__(
        self, uri: str, leaves: Sequence[TreeLeaf], cuts: Mapping[str, TiledTensor]
    ) -> None:
        self._uri = uri
        self._cuts = {one.leaf.name: cuts[one.entry.name] for one in leaves if one.entry}
        self._numbers = {
            one.leaf.name: Extent(one.path, 0, len(one.number[1]), inline=one.number[1])
            for one in leaves
            if one.number
        }

    def locate(self, name: str, index: Index) -> Extent:
        """The place of a chunk's elements. Raises FormatError if there is no such tensor or chunk."""
        if name in self._numbers and index == ():
            return self._numbers[name]
        if name not in self._cuts:
            raise FormatError(f"{self._uri} has no tensor named {name!r}")
        extent = self._cuts[name].chunks.locate(index)
        if extent is None:
            raise FormatError(f"{self._uri}: {name!r} has no chunk {list(index)}")
        return extent

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:
        """The places of each piece that several ranks stored."""
        return self._cuts[name].copies if name in self._cuts else ()

    def recorded_ranges(self, name: str) -> Sequence[RecordedRange]:
        """The range of each piece, with its CRC-32."""
        crcs = self._cuts[name].crcs if name in self._cuts else None
        return crcs.ranges() if crcs else ()

    def folders_to_record(self, reader: Reader, root: Location) -> list[RecordedFolder]:
        """The folder, with the metadata files; the digests of tensors cover the rest."""
        files = tuple(file.name for file in metadata_files(root))
        tree = TensorTree(reader.leaves, reader.tensors)
        return [RecordedFolder("", tree, files, data_files=None)]


def _wanted(entries: Entries) -> Iterator[Wanted]:
    """The items to look into: every place of a value, since ranks that save alone may have different ones."""
    for entry in entries.entries.values():
        if isinstance(entry, ValueEntry):
            for place in entry.places:
                yield place, f"the value {entry.name!r}", "anything" if entry.unread else "a value"
            continue
        for piece in filled(entry):
            for place in piece.places:
                yield place, f"the piece {piece.box} of {entry.name!r}", "a tensor"


def _values(
    entries: Entries, found: Mapping[ItemPlace, StoredItem | StoredValue]
) -> Iterator[tuple[str, tuple[StoredValue, ...]]]:
    """The value of each rank, for each entry that is no tensor."""
    for entry in entries.entries.values():
        if isinstance(entry, ValueEntry):
            of_places = tuple(cast("StoredValue", found[place]) for place in entry.places)
            yield entry.name, (_unread(entry, of_places),) if entry.unread else of_places


def _unread(entry: ValueEntry, parts: Sequence[StoredValue]) -> StoredValue:
    """A value that is not looked into; its digest is of those of its parts, if all have one."""
    digests = [part.digest for part in parts]
    digest = f"{zlib.crc32(repr(digests).encode()):08x}" if digests and all(digests) else ""
    return StoredValue(Unread(entry.unread), parts[0].path if parts else "", digest)


def _rank_warnings(values: Mapping[str, tuple[StoredValue, ...]]) -> Iterator[str]:
    """A sentence about values that differ between ranks; the first is taken."""
    differing = [name for name, of_ranks in values.items() if not all(map(of_ranks[0].is_like, of_ranks))]  # fmt: skip
    if differing:
        more = f" and {len(differing) - 1:,} more" if differing[1:] else ""
        yield f"{differing[0]!r}{more}: the ranks saved different values; that of the first is taken"


def _stored(
    one: TreeLeaf, cuts: Mapping[str, TiledTensor], known: SliceFile, root: Location
) -> StoredTensor:
    name = one.leaf.name
    entry = known.tensors.get(name)
    if one.number is not None:
        dtype, element = one.number
        if entry is not None and entry.dtype == "uint64" and dtype == "int64" and element[-1] < 128:
            dtype = "uint64"  # Python numbers have no sign of their own; the bytes are the same
        spec, encoding = TensorSpec(name, (), dtype, Grid.whole(())), Encoding()
        crcs = crcs_of_number(element) if one.is_checked else None
    else:
        cut = cuts[one.entry.name if one.entry else name]
        grid = cut.chunks.grid
        spec = TensorSpec(name, grid.shape, cut.dtype, grid)
        encoding = read_ahead(cut.chunks.encoding, root.store)
        crcs = cut.crcs.summed() if cut.crcs else None
    fill = bytes(storage_bytes(spec.dtype))
    if fitting_entry(known, name, spec.dtype, spec.shape) is None or entry is None:
        return StoredTensor(spec, encoding, fill, False, crcs=crcs)
    spec = replace(spec, layout=entry.layout)
    return StoredTensor(
        spec, encoding, fill, False, entry.digest, partition=entry.partition, crcs=crcs
    )


def _read_record(
    root: Location, files: Sequence[MetadataFile], record: RecordUse
) -> SliceFile | None:
    """The record beside it. Raises CorruptError if the record is to be checked and the metadata differs from it."""
    known = read_slices(root)
    for file in files if known is not None and record == "checked" else ():
        name, digest = file.where.rpartition("/")[2], digest_of(file.data)
        check_digest(
            digest, known.files.get(name, digest) if known else digest, f"the file {file.where}"
        )
    return known


OPENED_LEAF_BYTES = 4000
"""Memory of a leaf or a piece while it is opened: its nodes, its records and the ends of its archive.

tracemalloc measures 3300 for pieces of tensors with 32 dimensions, 1900 with two, 1900 for a number (CPython 3.11)."""

LEAF_BYTES, PIECE_BYTES, DIMENSION_BYTES = 1400, 560, 36
"""Memory of an open leaf, of each of its pieces, and of a dimension of either.

Measured: a tensor in one piece takes 1680 with two dimensions and 2200 with 32, one in 16 pieces 10,000 and 23,000."""

_NEWOBJ = b"\x81"
_OBJECTS_OF_AN_ITEM = 3
"""Objects that ``.metadata`` makes for each item at least: its kind, its index, and its place."""

_ITEM_BYTES = 200
"""Of ``.metadata`` for each item at least; other values of the same size in a hostile file take no more memory."""

_FEW_ITEMS = 1 << 16
"""Up to so many items, values of many parts count."""

_SMALL_VALUE_BYTES = 2 << 10
_PART_BYTES = 2
"""An archive of up to 2 KiB has few values in it; in a larger one a value takes 2 bytes at least."""

_FEW_PARTS = 1 << 12
"""Up to so many values, by their sizes, no archive is read: they take 16 MB."""

_MOST_READ_BYTES = 32 << 20
"""Of archives whose values are counted, each up to the limit of its pickle; those of 2,000 random states take 25 MB. It takes some 15
seconds at worst. Those beyond are priced by their sizes."""


def leaf_count(root: Location) -> int:
    """An estimate of its leaves and pieces, never too low; 0 if it cannot be read, which opening it reports."""
    try:
        files = read_metadata_files(root)
        objects = sum(file.data.count(_NEWOBJ) for file in files)
        nbytes = sum(len(file.data) for file in files)
        items = max(objects // _OBJECTS_OF_AN_ITEM, nbytes // _ITEM_BYTES)
        return items + (_more_values(root, parse_metadata(files)) if items <= _FEW_ITEMS else 0)
    except ReshardError:
        return 0


def _more_values(root: Location, entries: Entries) -> int:
    """The number of leaves that the values have beyond one each: by the sizes of their archives if those are few, else counted."""
    values = [entry for entry in entries.entries.values() if isinstance(entry, ValueEntry)]
    places = {value.places[0]: value.name for value in values if _most_parts(value.places[0])}
    by_size = sum(map(_most_parts, places))
    if by_size <= _FEW_PARTS:
        return by_size
    more, left = 0, _MOST_READ_BYTES
    read = list[Wanted]()
    for place, name in places.items():
        nbytes = min(place.nbytes, MAX_ITEM_PICKLE_BYTES)
        if nbytes <= left:
            left -= nbytes
            read.append((place, f"the value {name!r}", "a value"))
        else:
            more += _most_parts(place)
    return more + _counted(root, read)


def _most_parts(place: ItemPlace) -> int:
    return max(0, min(place.nbytes, MAX_ITEM_PICKLE_BYTES) - _SMALL_VALUE_BYTES) // _PART_BYTES


def _counted(root: Location, wanted: Sequence[Wanted]) -> int:
    """The number of parts of these values; one that is not looked into adds none."""
    more = 0
    try:
        for _, item in each_item(root, wanted):
            if isinstance(item, StoredValue) and not isinstance(item.values, Unread):
                more += len(item.values)
    except ReshardError:
        return more  # opening it stops there too, or before
    return more


def kept_bytes(leaves: Sequence[TreeLeaf]) -> int:
    """The memory that the open checkpoint keeps."""
    total = 0
    for one in leaves:
        rank, pieces = (len(one.entry.shape), len(one.entry.pieces)) if one.entry else (0, 0)
        total += LEAF_BYTES + PIECE_BYTES * pieces + DIMENSION_BYTES * rank * (1 + pieces)
        total += 4 * len(one.leaf.name)
    return total
