"""The memory that a distributed checkpoint of torch takes once it is open, and an estimate of it before."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import ReshardError
from reshard.formats.dcp.entries import Entries, ItemPlace, ValueEntry
from reshard.formats.dcp.files import read_metadata_files
from reshard.formats.dcp.items import StoredValue, Wanted, each_item
from reshard.formats.dcp.metadata import parse_metadata
from reshard.formats.dcp.tree import TreeLeaf
from reshard.formats.limits import MAX_ITEM_PICKLE_BYTES
from reshard.formats.torch.plain_value import Unread
from reshard.storage.location import Location

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
